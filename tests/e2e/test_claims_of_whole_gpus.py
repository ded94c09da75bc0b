"""Where the API server drops the memory of claims, as before Kubernetes 1.36: whole GPUs are advertised, and who names
an amount is told so. The API server is a real one whose feature gate is off."""

import asyncio
from collections.abc import Iterator

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.objects.kinds import NodeMetadata, NodeObject
from carrel.kubernetes.objects.resources import CRDS, NAMESPACES
from carrel.manifests import crds
from carrel.node.interfaces import MachineState
from carrel.resource_claims.node.device_slice import SlicePublisher
from testbed.control_plane import ApiServer, Shape
from testbed.control_plane import api_server as start_api_server
from testbed.fixtures import shown_run
from tests.e2e.claim_node import CLAIMS, RESOURCES
from tests.e2e.configuration import configure
from tests.e2e.pods import Json, eventually
from tests.e2e.webhook import UserClient, Webhook
from tests.kit.gpus import N1, a_node

TEMPLATES = f"{RESOURCES}/namespaces/default/resourceclaimtemplates"


async def publish(api: ApiServer) -> None:
    """As an agent does it."""
    client = Client(HttpTransport(access_to(api.kubeconfig, {})))
    try:
        node = NodeObject(
            metadata=NodeMetadata(uid=(await client.list(NAMESPACES)).items[0].metadata.uid)
        )  # any will do
        await SlicePublisher(client, N1).publish(MachineState(a_node("n1").gpus), node, None)
    finally:
        await client.aclose()


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    gates = Shape(feature_gates="DRAConsumableCapacity=false")
    with shown_run("whole-gpus") as run, start_api_server(run, gates) as api:
        for crd in crds():
            api.call("POST", CRDS.path(), crd)
        api.call("POST", NAMESPACES.path(), {"metadata": {"name": "carrel"}})
        asyncio.run(publish(api))
        configure(api, CLAIMS)
        Webhook(api, has_claims=True).configure()
        yield api


def a_template(name: str, **asked: object) -> Json:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev", **asked}}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


def test_the_slice_advertises_whole_gpus(api: ApiServer) -> None:
    (found,) = api.call("GET", f"{RESOURCES}/resourceslices")["items"]
    assert [each["capacity"]["memory"] for each in found["spec"]["devices"]] == [{"value": "16276Mi"}] * 2
    assert [each for each in found["spec"]["devices"] if "allowMultipleAllocations" in each] == []


def test_a_claim_that_names_memory_is_refused_and_others_are_created(api: ApiServer) -> None:
    eve, half = UserClient(api, "eve@lab.example"), {"capacity": {"requests": {"memory": "8138Mi"}}}

    def is_asked() -> bool:
        status, answer = eve.call("POST", f"{TEMPLATES}?dryRun=All", a_template("half", **half))
        return status == 403 and "claims get whole GPUs in this cluster" in answer["message"]

    eventually(is_asked)
    assert eve.call("POST", TEMPLATES, a_template("whole"))[0] == 201
