"""ResourceClaims in a lab: what an agent publishes, and what a scheduler writes, with the gate between."""

from collections.abc import Mapping
from typing import Any

from carrel.admission.review import AdmissionRequest, RequestUser
from carrel.kubernetes.cluster import DeleteOptions, Json
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.resource_claims.gate.claim_gate import ClaimGate
from carrel.resource_claims.objects import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.kit.eventually import eventually
from tests.kit.lab import Lab, Replica

SCHEDULER = "system:kube-scheduler"


def a_slice(node: Node, driver: str = "gpu.carrel.dev", generation: int = 1) -> Json:
    """What an agent publishes."""
    devices = [
        {"name": f"gpu-{gpu.index}", "attributes": {"uuid": {"string": gpu.uuid}}, "allowMultipleAllocations": True}
        for gpu in node.gpus
    ]
    pool = {"name": node.name, "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-{driver}"},
        "spec": {"driver": driver, "nodeName": node.name, "pool": pool, "devices": devices},
    }


async def publish(lab: Lab, *nodes: Node, driver: str = "gpu.carrel.dev", generation: int = 1) -> None:
    for node in nodes:
        await lab.client.create(RESOURCE_SLICES, a_slice(node, driver, generation))


async def new_claim(lab: Lab, name: str, namespace: str = "lab", **wanted: Any) -> Json:
    """`wanted`: what it asks for besides its class, as `adminAccess=True`."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev", **wanted}}]
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return await lab.client.create(RESOURCE_CLAIMS, {**body, "spec": {"devices": {"requests": requests}}}, namespace)


def allocated(claim: Json, given: Mapping[str, str], *pods: Json, **more: Any) -> Json:
    """The claim as a scheduler writes it: `{"n1/gpu-0": "8138Mi"}`; without an amount, the whole GPU."""
    results = []
    for place, amount in given.items():
        pool, _, device = place.partition("/")
        consumed = {"consumedCapacity": {"memory": amount}} if amount else {}
        driver = {"request": "gpu", "driver": "gpu.carrel.dev", "pool": pool, "device": device}
        results.append({**driver, **consumed, **more})
    reserved = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return {**claim, "status": status}


class Gate:
    """One replica of the webhook."""

    def __init__(self, replica: Replica) -> None:
        assert replica.device_claims is not None
        self.replica = replica
        self.gate = ClaimGate(replica, replica.device_claims)

    async def ask(self, after: Json, before: Json, *, dry_run: bool = False, user: str = SCHEDULER) -> Refusal | None:
        name, namespace = after["metadata"]["name"], after["metadata"]["namespace"]
        request = AdmissionRequest(
            "admission.k8s.io/v1",
            "a-review",
            "ResourceClaim",
            "UPDATE",
            namespace,
            name,
            RequestUser(user),
            "status",
            dry_run,
            after,
            before,
        )
        return await self.gate.decide(request)

    async def allocate(self, lab: Lab, claim: Json, given: Mapping[str, str], *pods: Json) -> Refusal | None:
        """As a scheduler does it: the write is stored if the gate says yes."""
        after = allocated(claim, given, *pods)
        refusal = await self.ask(after, claim)
        if refusal is None:
            await store(lab, after)
        return refusal


async def store(lab: Lab, claim: Json) -> Json:
    return await lab.client.update(RESOURCE_CLAIMS, claim, subresource="status")


async def deallocate(lab: Lab, name: str) -> Json:
    claim = await lab.client.get(RESOURCE_CLAIMS, name, "lab")
    return await store(lab, {**claim, "status": {}})


async def delete_claim(lab: Lab, name: str) -> None:
    await lab.client.delete(RESOURCE_CLAIMS, name, "lab", how=DeleteOptions(grace_seconds=0))


async def sees_claim(replica: Replica, claim: Json) -> None:
    """Once the cache has it in this version or a later one, or no more if the claim is gone."""
    assert replica.device_claims is not None
    store, metadata = replica.device_claims.claims.store, claim["metadata"]

    def is_here() -> bool:
        found = store.get(metadata["name"], metadata["namespace"])
        return found is not None and int(found.metadata.resource_version) >= int(metadata["resourceVersion"])

    await eventually(is_here, f"{metadata['name']} in the cache")
