"""A component writes nothing before it knows that no other installation is in the cluster, and stops if one comes."""

import asyncio
import json
from typing import Any

import pytest

from carrel.cluster import installation
from carrel.cluster.installation import OneInstallation, why_two
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Forbidden
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.kubernetes.transport import ApiRequest
from carrel.manifests import rbac
from kubernetes_in_memory.messages import HttpResponse

Json = dict[str, Any]
MARKER_PATH = "/apis/rbac.authorization.k8s.io/v1/clusterroles/carrel-installation"


def marker(namespace: str) -> Json:
    return {"metadata": {"name": "carrel-installation", "annotations": {"carrel.dev/installed-in": namespace}}}


class ApiServer:
    """Answers what is there; 404, 403 or 503 as a number. Notes what was written."""

    def __init__(self, found: Json | int) -> None:
        self.found = found
        self.written: list[str] = []

    async def send(self, request: ApiRequest) -> HttpResponse:
        if request.method != "GET":
            self.written.append(request.path)
            return HttpResponse(201, b"{}")
        assert request.path == MARKER_PATH
        if isinstance(self.found, int):
            return HttpResponse(self.found, b'{"kind": "Status", "reason": "Whatever", "message": "no"}')
        return HttpResponse(200, json.dumps(self.found).encode())

    async def aclose(self) -> None:
        """Nothing is open."""


async def write(client: Client) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": "any"}}, "carrel")


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(404, id="no marker, as where components are run by hand"),
        pytest.param(403, id="a marker of nobody: there is no role that lets it be read"),
        pytest.param(marker("carrel"), id="its own marker, as after an upgrade or a restart"),
        pytest.param({"metadata": {}}, id="a role of that name that marks nothing"),
    ],
)
async def test_it_goes_on_where_nobody_else_is(found: Json | int) -> None:
    api = ApiServer(found)
    one = OneInstallation(Client(api), "carrel")
    looking = asyncio.ensure_future(one.wait_other())
    await write(Client(api).guarded(one.require))
    assert len(api.written) == 1 and not looking.done()
    looking.cancel()


async def test_beside_another_installation_it_writes_nothing_and_says_what_to_do() -> None:
    api = ApiServer(marker("gpus"))
    one = OneInstallation(Client(api), "carrel")
    looking = asyncio.ensure_future(one.wait_other())
    with pytest.raises(Forbidden):
        await write(Client(api).guarded(one.require))
    assert api.written == []
    why = await looking
    assert why == why_two("gpus", "carrel")
    assert "give it --carrel-namespace gpus" in why and "carrel purge --carrel-namespace gpus" in why


async def test_writes_wait_while_the_api_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "RETRY_S", 0.0)
    api = ApiServer(503)
    one = OneInstallation(Client(api), "carrel")
    looking = asyncio.ensure_future(one.wait_other())
    writing = asyncio.ensure_future(write(Client(api).guarded(one.require)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not writing.done() and api.written == []
    api.found = marker("carrel")
    await writing
    looking.cancel()


async def test_it_stops_when_another_installation_overwrites_the_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "LOOK_S", 0.0)
    api = ApiServer(marker("carrel"))
    one = OneInstallation(Client(api), "carrel")
    looking = asyncio.ensure_future(one.wait_other())
    await write(Client(api).guarded(one.require))
    api.found = marker("gpus")
    assert await looking
    with pytest.raises(Forbidden):
        await write(Client(api).guarded(one.require))


def test_the_manifests_have_the_marker_and_every_service_account_may_read_it() -> None:
    documents = {(each["kind"], each["metadata"]["name"]): each for each in rbac()}
    role = documents["ClusterRole", "carrel-installation"]
    assert installation.installed_in(role) == "carrel"
    assert role["rules"] == [
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterroles"],
            "resourceNames": ["carrel-installation"],
            "verbs": ["get"],
        }
    ]
    (reader,) = documents["ClusterRoleBinding", "carrel-installation"]["subjects"]
    assert (reader["kind"], reader["name"]) == ("Group", "system:serviceaccounts")
