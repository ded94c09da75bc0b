"""Beside NVIDIA's DRA driver: its whole GPUs are on the same Leases as everything else, however pods ask for them. The
driver is simulated: its slices are written here, and nobody prepares claims on nodes that exist only as objects."""

from collections.abc import Iterator

import pytest

from tests.e2e.carrel_cluster import CarrelCluster, a_node, carrel_cluster
from tests.e2e.claim_node import RESOURCES, since_1_36, with_claim
from tests.e2e.pods import Json, create, eventually, pod
from tests.e2e.webhook import Webhook

pytestmark = since_1_36

NVIDIA, GPU = "gpu.nvidia.com", "nvidia.com/gpu"
NODE = "n1"
CONFIGURATION = {"resourceClaims": {"enabled": True, "driver": NVIDIA}}
WHERE = "default"
"""Three GPUs: each test finds what the one before it has left."""


class Cluster:
    def __init__(self, carrel: CarrelCluster) -> None:
        self.carrel, self.api = carrel, carrel.api
        nothing = {"allocatable": {GPU: "0"}, "capacity": {GPU: "0"}}  # NVIDIA's device plugin is not there
        self.api.call("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": nothing})
        Webhook(self.api, has_claims=True).configure_claims(NVIDIA)
        self.api.start_scheduler()
        selector = f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == 'gpu'"
        spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": GPU}
        self.api.call("POST", f"{RESOURCES}/deviceclasses", {"metadata": {"name": NVIDIA}, "spec": spec})
        template = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": NVIDIA}}]}}
        body = {"metadata": {"name": "one"}, "spec": {"spec": template}}
        self.api.call("POST", f"{RESOURCES}/namespaces/{WHERE}/resourceclaimtemplates", body)

    def publish(self) -> None:
        """As NVIDIA's driver does."""
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{NODE}-{index}"}},
                "capacity": {"memory": {"value": "16276Mi"}},
            }
            for index in range(3)
        ]
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NVIDIA, "nodeName": NODE, "pool": pool, "devices": devices}
        self.api.call("POST", f"{RESOURCES}/resourceslices", {"metadata": {"name": f"{NODE}-{NVIDIA}"}, "spec": spec})

    def claim(self, *names: str) -> None:
        for name in names:
            create(self.api, WHERE, with_claim(name, {"resourceClaimTemplateName": "one"}))

    def is_bound(self, name: str) -> bool:
        return "nodeName" in self.carrel.pods(WHERE)[name]["spec"]

    def holders(self) -> dict[str, list[str]]:
        """GPU → who holds it, by name."""
        claims = self.api.call("GET", f"{RESOURCES}/namespaces/{WHERE}/resourceclaims")["items"]
        names = {each["metadata"]["uid"]: "claim of " + owner(each) for each in claims}
        names |= {each["metadata"]["uid"]: name for name, each in self.carrel.pods(WHERE).items()}
        return {gpu: [names.get(uid, uid) for uid in shares] for gpu, shares in self.carrel.held().items()}


def owner(claim: Json) -> str:
    return str(claim["metadata"]["ownerReferences"][0]["name"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with carrel_cluster("nvidias-dra-driver", [a_node(NODE, [16276] * 3)], CONFIGURATION) as carrel:
        yield Cluster(carrel)


def test_a_share_and_claims_of_nvidias_driver_never_have_the_same_gpu(cluster: Cluster) -> None:
    create(cluster.api, WHERE, pod("share", limits={"aliyun.com/gpu-mem": "8138"}, schedulerName="gpu-scheduler"))
    eventually(lambda: cluster.is_bound("share"))
    ((taken, _),) = cluster.holders().items()
    cluster.publish()

    cluster.claim("first", "second")
    eventually(lambda: cluster.is_bound("first") and cluster.is_bound("second"))
    cluster.claim("late")

    def waits() -> bool:
        conditions = cluster.carrel.pods(WHERE)["late"]["status"].get("conditions", [])
        return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)

    eventually(waits)
    assert not cluster.is_bound("late")
    held = cluster.holders()
    assert sorted(held.values()) == [["claim of first"], ["claim of second"], ["share"]]
    assert held[taken] == ["share"]


def test_a_claim_that_goes_makes_room_for_the_next(cluster: Cluster) -> None:
    cluster.api.call("DELETE", f"/api/v1/namespaces/{WHERE}/pods/first")
    eventually(lambda: cluster.is_bound("late"))
    assert sorted(cluster.holders().values()) == [["claim of late"], ["claim of second"], ["share"]]


def test_nvidias_resource_is_the_claim_that_the_scheduler_makes_for_it_and_is_counted_once(cluster: Cluster) -> None:
    for gone in ("late", "second"):
        cluster.api.call("DELETE", f"/api/v1/namespaces/{WHERE}/pods/{gone}")
    eventually(lambda: sorted(cluster.holders().values()) == [["share"]])
    for name, scheduler in (("by-carrel", "gpu-scheduler"), ("by-kubernetes", "default-scheduler")):
        create(cluster.api, WHERE, pod(name, limits={GPU: "1"}, schedulerName=scheduler))
        eventually(lambda: cluster.is_bound(name))  # noqa: B023 # used at once
    for name in ("by-carrel", "by-kubernetes"):
        assert "extendedResourceClaimStatus" in cluster.carrel.pods(WHERE)[name]["status"]
    held = sorted(cluster.holders().values())
    assert held == [["claim of by-carrel"], ["claim of by-kubernetes"], ["share"]]
