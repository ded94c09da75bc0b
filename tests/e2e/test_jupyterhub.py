"""A real JupyterHub on a real cluster: notebooks that lose their GPU to a booked pod.

The hub, its proxy and Carrel's components are processes of this machine, each with the rights of its ServiceAccount;
the hub's are those that docs/jupyterhub.md gives. The notebooks are containers of a real kubelet.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.kubernetes.objects.resources import NAMESPACES, PODS, SERVICE_ACCOUNTS
from testbed.processes import Process
from tests.e2e.carrel_cluster import a_booking
from tests.e2e.carrel_node import WHOLE, CarrelNode, a_pod, carrel_node
from tests.e2e.pods import Json, eventually, is_gone, phase
from tests.e2e.webhook import UserClient, Webhook
from tests.kit.jupyterhub.hub_files import HUB, NAMESPACE, HubAccess, write_hub_files
from tests.kit.programs import http_proxy

MANUAL = Path(__file__).parents[2] / "docs" / "jupyterhub.md"
BOOKING_SERVICE = "system:serviceaccount:carrel:carrel-booking"
CAROL = "carol@lab.example"
LIMIT_S = 300
"""For broken components; each step takes seconds."""
MOVED = "is served by the successor of its pod"
PORT = 8888
NOTEBOOK = f"""
trap '[ "$JUPYTERHUB_USER" = bea ] || exit 0' TERM
folder=/tmp/served$JUPYTERHUB_SERVICE_PREFIX
mkdir -p "$folder"
echo "GPU: $NVIDIA_VISIBLE_DEVICES" > "$folder/index.html"
ln -s /etc/carrel/notice "$folder/notice"
httpd -p {PORT} -h /tmp/served
while true; do sleep 1; done
"""
"""A server that says at its URL which GPU it sees, and what it is told. Bea's goes on when it is asked to end."""


class HubOnCluster:
    def __init__(self, carrel: CarrelNode) -> None:
        self.carrel, self.api = carrel, carrel.api
        folder = self.api.run.data / "hub"
        folder.mkdir()
        self._token = self._create_account()
        kubeconfig = self.api.authority.kubeconfig(folder / "kubeconfig", self.api.url, self._token)
        # The proxy would outlive a hub that is killed.
        proxy = ["setpriv", "--pdeathsig", "KILL", *http_proxy()]
        spawner = {
            "image": "testbed/busybox:1",
            "image_pull_policy": "Never",
            "cmd": ["sh", "-c", NOTEBOOK],
            "services_enabled": True,
            "poll_interval": 1,
            "start_timeout": LIMIT_S,
            "http_timeout": LIMIT_S,
        }
        self._hub = write_hub_files(folder, HubAccess(kubeconfig, self._token, "", proxy), PORT, spawner)
        variables = [f"{name}={value}" for name, value in self._hub.variables.items()]
        self.process: Process = self.api.start("hub", ["env", f"--chdir={folder}", *variables, *self._hub.command])
        self.process.wait_until("serving", lambda: self.ask("GET", "/hub/api/")[0] == 200, LIMIT_S)

    def _create_account(self) -> str:
        """The hub's token, with the rights of the manual."""
        self.api.call("POST", NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        self.api.wait_for_namespace(NAMESPACE)
        accounts = SERVICE_ACCOUNTS.path(NAMESPACE)
        self.api.call("POST", accounts, {"metadata": {"name": "hub"}})
        rights = [
            each for each in re.findall(r"```yaml\n(.*?)```", MANUAL.read_text(), re.DOTALL) if "kind: Role" in each
        ]
        self.api.kubectl("apply", "--filename", "-", given="---\n".join(rights))
        request = {"spec": {"expirationSeconds": 7200}}
        return str(self.api.call("POST", f"{accounts}/hub/token", request)["status"]["token"])

    # --- the hub -----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Json | None = None) -> tuple[int, str]:
        """The status, and what the hub or a notebook answers through the proxy."""
        headers = {"Authorization": f"token {self._hub.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._hub.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def start(self, user: str) -> Json:
        """The running pod of a notebook with a GPU."""
        for path, body in ((f"users/{user}", None), (f"users/{user}/server", {"profile": "gpu-any"})):
            status, said = self.ask("POST", f"/hub/api/{path}", body)
            assert status in (201, 202), said
        eventually(lambda: self.server(user).get("ready"), LIMIT_S)
        return self.pod(user)

    def stop(self, user: str) -> None:
        status, said = self.ask("DELETE", f"/hub/api/users/{user}/server")
        assert status in (202, 204), said

    def server(self, user: str) -> Json:
        """What the hub knows of the server of a user; empty if it has none."""
        _, said = self.ask("GET", f"/hub/api/users/{user}")
        found: Json = json.loads(said)["servers"].get("", {})
        return found

    def page(self, user: str, path: str = "") -> str:
        """What the notebook answers, if it does."""
        try:
            status, said = self.ask("GET", f"/user/{user}/{path}")
        except OSError:
            return ""
        return said.strip() if status == 200 else ""

    def log(self) -> str:
        return self.process.log.read_text()

    # --- the cluster -------------------------------------------------------------------------------------------------

    def create_as(self, who: str, path: str, what: Json) -> None:
        status, answer = UserClient(self.api, who).call("POST", path, what)
        assert status == 201, answer

    def pod(self, user: str) -> Json:
        """Empty if there is none."""
        return self.carrel.pods(NAMESPACE).get(f"jupyter-{user}", {})

    def owners_of_service(self, user: str) -> list[str]:
        service = self.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/services/jupyter-{user}")
        return [owner["uid"] for owner in service["metadata"].get("ownerReferences", [])]

    def hand_overs(self) -> list[Any]:
        records = "/api/v1/namespaces/carrel/configmaps?labelSelector=carrel.dev/handover"
        found: list[Any] = self.api.call("GET", records)["items"]
        return found


CONFIGURATION = {
    "hubs": {"accounts": [HUB], "usernameDomain": "lab.example"},
    # Nobody goes to CPU because this machine is slow; people need minutes to save their work, this test does not.
    "tiers": {"waitBeforeCpu": "0s", "minimumTime": "0s", "notebookGrace": "5s"},
}


@pytest.fixture
def hub() -> Iterator[HubOnCluster]:
    with carrel_node("jupyterhub", configuration=CONFIGURATION) as carrel:
        eventually(lambda: len(carrel.devices()) == 2)
        whose = {name: account(carrel, name) for name in ("extender", "webhook", "controller")}
        carrel.extender.stop()
        carrel.extender = carrel.start_extender("extender", 0, "--kubeconfig", whose["extender"])
        Webhook(carrel.api, "--kubeconfig", whose["webhook"]).install()
        carrel.controller.stop()
        carrel.controller = carrel.start_controller("--kubeconfig", whose["controller"])
        yield HubOnCluster(carrel)


def account(carrel: CarrelNode, name: str) -> Path:
    groups = ["system:serviceaccounts", "system:serviceaccounts:carrel", "system:authenticated"]
    return carrel.api.kubeconfig_of(f"system:serviceaccount:carrel:carrel-{name}", groups)


def test_notebooks_lose_their_gpus_to_a_booked_pod(hub: HubOnCluster) -> None:
    # Two students start notebooks, and get the GPUs.
    ada, bea = hub.start("ada"), hub.start("bea")
    assert ada["metadata"]["annotations"]["carrel.dev/user"] == "ada@lab.example"
    gpus = {device["uuid"] for device in hub.carrel.devices()}
    pages = [eventually(lambda: hub.page(user), LIMIT_S) for user in ("ada", "bea")]  # noqa: B023 # used at once
    assert set(pages) == {f"GPU: {gpu}" for gpu in gpus}
    assert hub.owners_of_service("ada") == [ada["metadata"]["uid"]]
    started = hub.server("ada")["started"]

    # Somebody who booked both needs them. Bea presses Stop while her pod is being ended.
    hub.create_as(BOOKING_SERVICE, BOOKINGS.path(), a_booking("both", CAROL, gpus=2))
    hub.create_as(CAROL, PODS.path("default"), a_pod("booked", {WHOLE: "2"}))
    eventually(lambda: has_lost_its_gpu(hub.pod("bea"), bea), LIMIT_S)
    hub.stop("bea")

    # Ada's notebook is back on CPU at the same URL. For the hub, it has been running all the time.
    assert eventually(lambda: hub.page("ada") == "GPU:", LIMIT_S)
    successor = hub.pod("ada")
    assert successor["metadata"]["uid"] != ada["metadata"]["uid"]
    eventually(lambda: hub.owners_of_service("ada") == [successor["metadata"]["uid"]], LIMIT_S)
    assert (hub.server("ada")["ready"], hub.server("ada")["started"]) == (True, started)
    notice = successor["metadata"]["annotations"]["carrel.dev/notice"]
    assert "lost its GPU" in notice
    eventually(lambda: hub.page("ada", "notice") == notice, LIMIT_S)

    # The booked pod has the GPUs. Bea's notebook is gone, and nothing is left that could bring it back.
    eventually(lambda: phase(hub.api, "default", "booked") == "Running", LIMIT_S)
    eventually(lambda: not hub.server("bea") and not hub.hand_overs(), LIMIT_S)
    eventually(lambda: hub.carrel.pods(NAMESPACE).keys() == {"jupyter-ada"}, LIMIT_S)

    # Ada presses Stop.
    eventually(lambda: hub.log().count(MOVED) == 1, LIMIT_S)
    hub.stop("ada")
    eventually(lambda: not hub.server("ada") and not hub.carrel.pods(NAMESPACE), LIMIT_S)
    eventually(lambda: is_gone(hub.api, f"/api/v1/namespaces/{NAMESPACE}/services/jupyter-ada"), LIMIT_S)
    assert not hub.hand_overs()
    assert "The hub may not" not in hub.log(), "the manual gives it all rights that it needs"
    assert hub.log().count(MOVED) == 1


def has_lost_its_gpu(now: Json, before: Json) -> bool:
    """It is ending, or has ended."""
    is_another = not now or now["metadata"]["uid"] != before["metadata"]["uid"]
    return is_another or "deletionTimestamp" in now["metadata"]
