import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from testbed import clients
from testbed.build import release
from testbed.control_plane import ApiServer
from testbed.control_plane import api_server as start_api_server
from testbed.fixtures import shown_run
from tests.e2e.pods import create, eventually, is_gone, namespace, pod, wait_for_phase

CHART = "apiVersion: v2\nname: note\nversion: 0.1.0\nkubeVersion: '>=1.33.0-0'\n"
TEMPLATE = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
data:
  colour: {{ .Values.colour | quote }}
"""


def test_the_api_server_answers_and_says_its_version(api_server: ApiServer) -> None:
    assert api_server.call("GET", "/version")["gitVersion"] == f"v{release()}"


@pytest.mark.parametrize("kubeconfig", ["kubeconfig", "token_kubeconfig"], ids=["by certificate", "by token"])
def test_each_kubeconfig_has_admin_rights(api_server: ApiServer, kubeconfig: str) -> None:
    asked = ["--kubeconfig", str(getattr(api_server, kubeconfig)), "auth", "can-i", "*", "*", "--all-namespaces"]
    assert api_server.kubectl(*asked).strip() == "yes"


def test_two_api_servers_run_side_by_side_and_are_independent(api_server: ApiServer) -> None:
    with shown_run("second") as run, start_api_server(run) as second:
        second.call("POST", "/api/v1/namespaces", {"metadata": {"name": "only-here"}})
        assert second.call("GET", "/api/v1/namespaces/only-here")["metadata"]["name"] == "only-here"
        assert is_gone(api_server, "/api/v1/namespaces/only-here")


def test_helm_installs_lists_and_uninstalls_a_release(api_server: ApiServer, tmp_path: Path) -> None:
    chart = tmp_path / "note"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(CHART)
    (chart / "templates/note.yaml").write_text(TEMPLATE)
    home = os.environ | {"HOME": str(tmp_path), "KUBECONFIG": str(api_server.kubeconfig)}

    def helm(*arguments: str) -> str:
        done = subprocess.run([clients.helm(), *arguments], env=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    path = "/api/v1/namespaces/default/configmaps/first"
    helm("install", "first", str(chart), "--set", "colour=blue")
    assert api_server.call("GET", path)["data"] == {"colour": "blue"}
    assert [release["name"] for release in json.loads(helm("list", "--output", "json"))] == ["first"]
    helm("uninstall", "first")
    assert is_gone(api_server, path)


def test_the_pods_of_a_deployment_run_on_hollow_nodes(cluster: ApiServer) -> None:
    template = pod("web", restartPolicy="Always")
    deployment = {
        "metadata": {"name": "web"},
        "spec": {"replicas": 5, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    with namespace(cluster) as name:
        path = f"/apis/apps/v1/namespaces/{name}/deployments"
        cluster.call("POST", path, deployment)
        eventually(lambda: cluster.call("GET", f"{path}/web")["status"].get("readyReplicas") == 5)


def test_a_second_scheduler_asks_its_extender_about_nodes(cluster: ApiServer) -> None:
    with namespace(cluster) as name, extender(only="hollow-1") as (url, asked):
        cluster.start_scheduler(
            "gpu-scheduler",
            [{"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "enableHTTPS": False}],
        )
        create(cluster, name, pod("asks", schedulerName="gpu-scheduler"))
        placed = wait_for_phase(cluster, name, "asks", "Running")
    assert placed["spec"]["nodeName"] == "hollow-1"
    assert [sorted(question["NodeNames"]) for question in asked] == [["hollow-0", "hollow-1", "hollow-2"]]


@contextmanager
def extender(only: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An extender that lets one node through, and keeps what it was asked."""
    asked: list[dict[str, Any]] = []

    class Filter(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"NodeNames": [only]}).encode())

    with HTTPServer(("127.0.0.1", 0), Filter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()
