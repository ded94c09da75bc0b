"""Three real kube-schedulers, two of which know nothing of Carrel, fill the same GPUs to the last MiB."""

from collections.abc import Iterator

import pytest

from carrel.ledger.gpus import Node
from carrel.resource_claims.node.device_slice import ServerAbility, devices_of, slice_of
from tests.e2e.carrel_cluster import CarrelCluster, a_node, carrel_cluster
from tests.e2e.carrel_node import MEM
from tests.e2e.claim_node import CLAIMS, since_1_36
from tests.e2e.pods import create, eventually, namespace, pod
from tests.e2e.webhook import Webhook

MEMORY, HALF = 16276, 8138
NODES = [a_node(f"half-{number}", [MEMORY] * 4) for number in range(10)]
EACH = 40
"""Pods of gpushare, and as many with claims: with their halves, all 40 GPUs are full."""

pytestmark = since_1_36


@pytest.fixture(scope="module")
def carrel() -> Iterator[CarrelCluster]:
    with carrel_cluster("three-schedulers", NODES, CLAIMS) as found:
        Webhook(found.api, has_claims=True).configure_claims()
        for node in NODES:
            publish(found, node)
        found.api.start_scheduler("second-scheduler")
        found.api.start_scheduler()
        yield found


def publish(carrel: CarrelCluster, node: Node) -> None:
    """As its agent does: hollow nodes have none."""
    uid = carrel.api.call("GET", f"/api/v1/nodes/{node.name}")["metadata"]["uid"]
    body = slice_of(node.name, uid, devices_of(node.gpus, ServerAbility(), {}), 1)
    carrel.api.call("POST", "/apis/resource.k8s.io/v1/resourceslices", body)


def test_40_pods_of_gpushare_and_40_with_claims_fill_80_halves_and_none_is_given_twice(carrel: CarrelCluster) -> None:
    with namespace(carrel.api) as name:
        wanted = {"deviceClassName": "gpu.carrel.dev", "capacity": {"requests": {"memory": f"{HALF}Mi"}}}
        spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}}}
        templates = f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaimtemplates"
        carrel.api.call("POST", templates, {"metadata": {"name": "half"}, "spec": spec})
        for number in range(EACH):
            share = pod(f"share-{number}", limits={MEM: str(HALF)}, schedulerName="gpu-scheduler")
            create(carrel.api, name, share)
            claims = [{"name": "gpu", "resourceClaimTemplateName": "half"}]
            scheduler = "second-scheduler" if number % 2 else "default-scheduler"
            claimed = pod(f"claim-{number}", resourceClaims=claims, schedulerName=scheduler)
            claimed["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
            create(carrel.api, name, claimed)

        def are_bound() -> bool:
            found = carrel.pods(name).values()
            return sum(bool(each["spec"].get("nodeName")) for each in found) == 2 * EACH

        eventually(are_bound, limit_s=300)

        def full() -> bool:
            """A claim that was allocated elsewhere at its second try may still hold its first GPU for a moment."""
            held = carrel.held()
            assert all(sum(memory or MEMORY for memory in shares.values()) <= MEMORY for shares in held.values()), held
            return sorted(len(shares) for shares in held.values()) == [2] * EACH

        eventually(full, limit_s=300)
        holders = {uid for shares in carrel.held().values() for uid in shares}
        assert len(holders) == 2 * EACH
