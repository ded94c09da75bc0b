import base64
import json
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from testbed.node import Node
from tests.e2e.pods import create, eventually, is_gone, namespace, pod, wait_for_phase
from tools.image.carrel_image import carrel_image


def test_a_pod_runs_in_a_real_container_and_its_logs_are_read(node: Node) -> None:
    manifest = pod("speaks", "env; cat /proc/1/comm")
    manifest["spec"]["containers"][0]["env"] = [{"name": "GREETING", "value": "good morning"}]
    with namespace(node.api) as name:
        create(node.api, name, manifest)
        wait_for_phase(node.api, name, "speaks", "Succeeded")
        words = node.api.kubectl("--namespace", name, "logs", "speaks").splitlines()
    assert "GREETING=good morning" in words
    assert words[-1] == "cat"


def test_a_command_runs_inside_a_running_container(node: Node) -> None:
    with namespace(node.api) as name:
        create(node.api, name, pod("waits"))
        wait_for_phase(node.api, name, "waits", "Running")
        assert node.api.kubectl("--namespace", name, "exec", "waits", "--", "hostname") == "waits\n"


def test_an_annotation_of_the_binding_is_in_the_containers_environment(node: Node) -> None:
    """Carrel tells a pod its GPUs in this way: the annotation and the node arrive in one write."""
    manifest = pod("bound", "echo gpus: $GPUS", schedulerName="nobody")
    source = {"fieldRef": {"fieldPath": "metadata.annotations['carrel.dev/devices']"}}
    manifest["spec"]["containers"][0]["env"] = [{"name": "GPUS", "valueFrom": source}]
    binding = {
        "metadata": {"name": "bound", "annotations": {"carrel.dev/devices": "GPU-a,GPU-b"}},
        "target": {"kind": "Node", "name": node.name},
    }
    with namespace(node.api) as name:
        create(node.api, name, manifest)
        node.api.call("POST", f"/api/v1/namespaces/{name}/pods/bound/binding", binding)
        wait_for_phase(node.api, name, "bound", "Succeeded")
        assert node.api.kubectl("--namespace", name, "logs", "bound") == "gpus: GPU-a,GPU-b\n"


def test_a_deleted_pod_is_stopped_and_removed(node: Node) -> None:
    with namespace(node.api) as name:
        create(node.api, name, pod("leaves"))
        wait_for_phase(node.api, name, "leaves", "Running")
        path = f"/api/v1/namespaces/{name}/pods/leaves"
        node.api.call("DELETE", path)
        eventually(lambda: is_gone(node.api, path))


def test_a_service_answers_this_machine_and_other_pods(node: Node) -> None:
    serve = "mkdir /tmp/www && echo hello > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www"
    service = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    with namespace(node.api) as name:
        create(node.api, name, pod("web", serve))
        address = node.api.call("POST", f"/api/v1/namespaces/{name}/services", service)["spec"]["clusterIP"]
        wait_for_phase(node.api, name, "web", "Running")

        def answer() -> bytes:
            try:
                with urllib.request.urlopen(f"http://{address}/", timeout=5) as page:
                    return bytes(page.read())
            except OSError:
                return b""

        assert eventually(answer) == b"hello\n"
        create(node.api, name, pod("asks", f"wget -q -O - http://{address}/"))
        wait_for_phase(node.api, name, "asks", "Succeeded")
        assert node.api.kubectl("--namespace", name, "logs", "asks") == "hello\n"


ASK_WHO_I_AM = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/apis/authentication.k8s.io/v1/selfsubjectreviews"
headers = {"Authorization": "Bearer " + open(f"{folder}/token").read(), "Content-Type": "application/json"}
request = urllib.request.Request(url, b"{}", headers)
trust = ssl.create_default_context(cafile=f"{folder}/ca.crt")
print(json.load(urllib.request.urlopen(request, context=trust))["status"]["userInfo"]["username"])
"""


def test_a_pod_reaches_the_api_server_by_its_service_account(node: Node) -> None:
    """With Carrel's own image: busybox's wget knows none of the ciphers that an API server of today accepts."""
    image = carrel_image()
    node.load(image)
    manifest = pod("asks")
    manifest["spec"]["containers"][0] |= {"image": image.name, "command": ["python3", "-c", ASK_WHO_I_AM]}
    with namespace(node.api) as name:
        create(node.api, name, manifest)
        wait_for_phase(node.api, name, "asks", "Succeeded")
        said = node.api.kubectl("--namespace", name, "logs", "asks")
    assert said == f"system:serviceaccount:{name}:default\n"


def test_the_api_server_calls_a_webhook_through_its_service(node: Node) -> None:
    with namespace(node.api) as name, webhook(node, f"words.{name}.svc") as port:
        service = {"metadata": {"name": "words"}, "spec": {"ports": [{"port": 443, "targetPort": port}]}}
        node.api.call("POST", f"/api/v1/namespaces/{name}/services", service)
        here = {"addresses": [{"ip": str(node.api.slot.machine_address)}], "ports": [{"port": port}]}
        endpoints = {"metadata": {"name": "words"}, "subsets": [here]}
        node.api.call("POST", f"/api/v1/namespaces/{name}/endpoints", endpoints)
        configuration = {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": "words.testbed.example",
                    "clientConfig": {
                        "service": {"namespace": name, "name": "words"},
                        "caBundle": base64.b64encode(node.api.authority.certificate.read_bytes()).decode(),
                    },
                    "namespaceSelector": {"matchLabels": {"words": name}},
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["configmaps"],
                        }
                    ],
                    "sideEffects": "None",
                    "timeoutSeconds": 2,
                    "admissionReviewVersions": ["v1"],
                }
            ],
        }
        hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        node.api.call("POST", hooks, configuration)
        node.api.call("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"words": name}}})

        def labelled() -> bool:
            # The configuration takes a moment to reach the API server's admission; a refusal meanwhile is no answer.
            config_map = {"metadata": {"generateName": "probe-"}}
            try:
                made = node.api.call("POST", f"/api/v1/namespaces/{name}/configmaps", config_map)
            except OSError:
                return False
            return bool(made["metadata"].get("labels", {}).get("seen") == "yes")

        eventually(labelled)
        node.api.call("DELETE", f"{hooks}/{name}")


@contextmanager
def webhook(node: Node, host: str) -> Iterator[int]:
    """A mutating webhook in this process that labels what it sees; the node reaches it by the machine's address."""

    class Label(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            patch = [{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]
            response = {
                "uid": review["request"]["uid"],
                "allowed": True,
                "patchType": "JSONPatch",
                "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
            }
            body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

    pair = node.api.authority.server(host, [], [host])
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(pair.certificate, pair.key)
    with HTTPServer((str(node.api.slot.machine_address), 0), Label) as server:
        server.socket = trust.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
