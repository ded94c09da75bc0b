"""`carrel webhook` on a real API server, a booking service that a test controls, and users."""

import base64
import http.client
import json
import os
import ssl
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from carrel.admission import certificates
from carrel.admission.certificates import Validity
from carrel.admission.served_certificate import ServedCertificate
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, PRIORITY_CLASSES, VALIDATING_WEBHOOKS
from carrel.manifests import dra, policies, priority_classes, webhooks
from testbed.control_plane import ApiServer
from testbed.processes import Process
from tests.e2e.configuration import ADMIN
from tests.e2e.pods import eventually
from tests.kit.ports import free_port

Json = dict[str, Any]

PATH_SECRET = "an-e2e-secret-0123456789"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = {
    "ValidatingAdmissionPolicy": f"{REGISTRATION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{REGISTRATION}/validatingadmissionpolicybindings",
}
FORGED = {"metadata": {"annotations": {"carrel.dev/tier": "booked"}}}


def install_policies(api: ApiServer, *trusted: str, is_asked: bool = True) -> None:
    """What the API server refuses by itself; returns when it does. Where no webhook `is_asked` yet, no GPU pod is
    refused."""
    for each in policies():
        for condition in each["spec"].get("matchConditions", ()):
            if condition["name"] == "not-by-trusted":
                condition["expression"] = condition["expression"].replace("[]", str(list(trusted)))
        api.call("POST", POLICIES[each["kind"]], each)
    pods = "/api/v1/namespaces/default/pods"
    somebody = UserClient(api, "somebody")
    api.call("POST", pods, {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "work"}]}})
    try:
        refused = [("PATCH", f"{pods}/probe?dryRun=All", FORGED)]
        if is_asked:
            refused.append(("POST", f"{pods}?dryRun=All", unadmitted_pod("unseen")))
        for method, path, body in refused:
            eventually(lambda: somebody.call(method, path, body)[0] == 403)  # noqa: B023 # used at once
    finally:
        api.call("DELETE", f"{pods}/probe?gracePeriodSeconds=0")


def unadmitted_pod(name: str) -> Json:
    """A GPU pod for a scheduler that does not know the GPUs."""
    container = {"name": "main", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


class BookingService:
    """Speaks MAIA's JSON. `until`: person → the end of the booking."""

    def __init__(self) -> None:
        self.until: dict[str, str] = {}
        self.model = ""
        self.url = ""

    def verdict(self, enquiry: Mapping[str, Any]) -> Json:
        until = self.until.get(enquiry["user_email"])
        return (
            {"schedulable": True, "until": until, "gpu": self.model} if until else {"schedulable": False, "until": None}
        )


def _say(to: BaseHTTPRequestHandler, answer: Json) -> None:
    body = json.dumps(answer).encode()
    to.send_response(200)
    to.send_header("content-length", str(len(body)))
    to.end_headers()
    to.wfile.write(body)


@contextmanager
def a_booking_service() -> Iterator[BookingService]:
    service = BookingService()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            _say(self, service.verdict(json.loads(self.rfile.read(int(self.headers["content-length"])))))

        def log_message(self, format: str, *args: Any) -> None:
            """The webhook's own log is kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    service.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


class Webhook:
    """Its process, on one address for as long as the API server knows it."""

    def __init__(self, api: ApiServer, *options: str | Path, has_claims: bool = False) -> None:
        self.api = api
        self._options = options
        self._has_claims = has_claims
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.process = self.start()

    def start(self) -> Process:
        command: list[str | Path] = ["env", f"CARREL_PATH_SECRET={PATH_SECRET}"]
        command += [sys.executable, "-m", "carrel", "webhook", "--kubeconfig", self.api.kubeconfig]
        command += ["--port", str(self._port)]
        process = self.api.start("webhook", [*command, *self._options])
        process.wait_until("ready", self._is_ready)
        self.process = process
        return process

    def kill(self) -> None:
        self.process.program.kill()
        self.process.program.wait()

    def install(self) -> None:
        """Everything that Carrel's admission needs on an API server."""
        for each in priority_classes():
            self.api.call("POST", PRIORITY_CLASSES.path(), each)
        install_policies(
            self.api, ADMIN, is_asked=False
        )  # first, as they are seen to work by what the webhook would put right
        self.configure()

    def configure(self) -> None:
        """Configures it as the chart does, and waits until the API server trusts it and asks about GPU pods."""
        for each in webhooks(dra=self._has_claims):
            del each["webhooks"][0]["rules"]  # it writes them itself, as it can answer
            for webhook in each["webhooks"]:
                webhook["clientConfig"] = {"url": f"{self.url}{webhook['clientConfig']['service']['path']}"}
            self.api.call("POST", MUTATING_WEBHOOKS.path(), each)
        self.process.wait_until("trusted", lambda: self._is_trusted(MUTATING_WEBHOOKS.path(name="carrel")))

    def configure_claims(self, driver: str = "gpu.carrel.dev") -> None:
        """The same for ResourceClaims of a driver, with everything else that claims need in the cluster."""
        objects = list(dra(driver=driver))
        for each in objects:
            for webhook in each.get("webhooks", ()):
                webhook["clientConfig"] = {"url": f"{self.url}{webhook['clientConfig']['service']['path']}"}
        given = json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
        self.api.kubectl("apply", "--filename", "-", given=given)
        self.process.wait_until("trusted", lambda: self._is_trusted(VALIDATING_WEBHOOKS.path(name="carrel")))

    def handshake(self, path: str = MUTATING_WEBHOOKS.path(name="carrel")) -> int:
        """The status of a call over a new connection, by whoever trusts what the API server is told to trust."""
        found = self.api.call("GET", path)["webhooks"][0]["clientConfig"]["caBundle"]
        context = ssl.create_default_context(cadata=base64.b64decode(found).decode())
        with urllib.request.urlopen(f"{self.url}/healthz", timeout=30, context=context) as answer:
            return int(answer.status)

    def _is_trusted(self, path: str) -> bool:
        entries = self.api.call("GET", path)["webhooks"]
        is_told = all(each["clientConfig"].get("caBundle") and each.get("rules") for each in entries)
        return is_told and self.handshake(path) == 200  # its certificate names the host as soon as it is configured

    def _is_ready(self) -> bool:
        anybody = ssl._create_unverified_context()  # only whether it is ready; the API server does verify
        with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=anybody) as answer:
            return bool(answer.status == 200)


class RecordingWebhook:
    """A webhook that lets every pod through, and remembers the names of those that it was asked about.

    With a change, it is another webhook of the cluster: what `change` answers are the operations of its patch.
    """

    def __init__(self, change: Callable[[Json], list[Json]] = lambda pod: []) -> None:
        self.names: set[str] = set()
        self.paths: dict[str, set[str]] = {}
        """Pod → the paths at which it was asked."""
        self.uids: set[str] = set()
        """As the pods had them when they were reviewed."""
        now = datetime.now(UTC)
        valid = Validity(now - timedelta(hours=1), now + timedelta(days=1))
        authority = certificates.new_authority(valid)
        served = ServedCertificate()
        served.load(certificates.issue(authority, ["127.0.0.1"], valid))
        witness = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))["request"]
                witness.names.add(request["name"])
                witness.paths.setdefault(request["name"], set()).add(self.path.partition("?")[0])
                witness.uids.add(request["object"]["metadata"].get("uid", ""))
                patch = base64.b64encode(json.dumps(change(request["object"])).encode()).decode()
                response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
                _say(self, {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})

            def log_message(self, format: str, *args: Any) -> None:
                """What it was asked about is remembered."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.socket = served.context().wrap_socket(self._server.socket, server_side=True)
        bundle = base64.b64encode(authority.certificate).decode()
        self.client_config = {"url": f"https://127.0.0.1:{self._server.server_port}/mutate", "caBundle": bundle}
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class UserClient:
    """A person with every right, whom Carrel does not trust; with a token, whose it is. Keeps one connection open."""

    def __init__(self, api: ApiServer, name: str, token: str = "") -> None:
        # A certificate has no room for the names of some ServiceAccounts.
        self._headers = {"Impersonate-User": name, "Impersonate-Group": "system:masters"} if len(name) > 64 else {}
        if token:
            self._headers = {"Authorization": f"Bearer {token}"}
        pair = api.authority.client(ADMIN if self._headers else name, ["system:masters"])
        self._context = ssl.create_default_context(cafile=api.authority.certificate)
        if not token:
            self._context.load_cert_chain(pair.certificate, pair.key)
        self._where = urlsplit(api.url)
        self._connection = self._connect()

    def _connect(self) -> http.client.HTTPSConnection:
        assert self._where.hostname is not None
        return http.client.HTTPSConnection(self._where.hostname, self._where.port, context=self._context, timeout=60)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Json]:
        """The status, and what was answered: an object, or a Status with a message."""
        try:
            return self._call(method, path, body)
        except (http.client.HTTPException, OSError):
            # The API server closes a connection that was idle for a while.
            self._connection.close()
            self._connection = self._connect()
            return self._call(method, path, body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, Json]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"Content-Type": kind, **self._headers})
        answer = self._connection.getresponse()
        text = answer.read()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else {"message": text.decode()}


@contextmanager
def sealed_with(key: str) -> Iterator[None]:
    """All components that start in the block have this key."""
    with given_secrets(CARREL_SEAL_KEY=key):
        yield


@contextmanager
def given_secrets(**variables: str) -> Iterator[None]:
    """All components that start in the block have these."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
