"""Pods with ResourceClaims in a lab, and stand-ins for what Kubernetes does with them: the controller of claims, and a
scheduler that allocates them by first fit, through the gate."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from carrel.cluster.pod_progress import is_waiting
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, Json, Selection
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.ledger.gpus import Node
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, ResourceClaim
from tests.kit.dra import Gate, allocated, publish, store
from tests.kit.eventually import eventually
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import TierController, catch_up, end_deleted, everything, mark_unschedulable, schedule, set_status

ADA = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}
EVE = {"carrel.dev/user": "eve@lab.example", "carrel.dev/tier": "opportunistic"}
OURS = "device.driver == 'gpu.carrel.dev'"


def asking(memory: str = "", count: int = 1, selector: str = "", device_class: str = "gpu.carrel.dev") -> Json:
    """The spec of a claim."""
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    selectors = {"selectors": [{"cel": {"expression": selector}}]} if selector else {}
    exactly = {"deviceClassName": device_class, "count": count, **capacity, **selectors}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


async def new_class(lab: Lab, name: str, **more: Any) -> None:
    """`more`: what its spec says besides the selector."""
    spec = {"selectors": [{"cel": {"expression": OURS}}], **more}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    await lab.client.create(DEVICE_CLASSES, {**body, "spec": spec})


class ClaimLab:
    """A lab whose nodes advertise their GPUs by claims, one replica of Carrel, and the rest of Kubernetes."""

    def __init__(self, lab: Lab, replica: Replica, nodes: tuple[Node, ...], **controller: Any) -> None:
        self.lab = lab
        self.replica = replica
        self.nodes = nodes
        self.gate = Gate(replica)
        self.controller = TierController(replica, **controller)
        self.refusals: list[str] = []

    async def template(self, name: str, spec: Json) -> None:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
        await self.lab.client.create(RESOURCE_CLAIM_TEMPLATES, {**body, "spec": {"spec": spec}}, "lab")

    async def claim(self, name: str, spec: Json | None = None) -> Json:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        return await self.lab.client.create(RESOURCE_CLAIMS, {**body, "spec": spec or asking()}, "lab")

    async def pod(self, name: str, annotations: Mapping[str, str], *, template: str = "", claim: str = "") -> Json:
        named = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
        claims = [{"name": "gpu", **named}]
        return await self.lab.pod(name, annotations=dict(annotations), claims=claims, scheduler="default-scheduler")

    async def settle(self) -> None:
        """Carrel, the controller of claims, the schedulers and the kubelets work until nothing changes any more."""
        before = ""
        for _ in range(40):
            await self.follow()
            await self.controller.round()
            await self.follow()
            await schedule(self.lab, self.replica, tuple(node.name for node in self.nodes))
            await self.schedule()
            await end_deleted(self.lab)
            now = str(sorted(map(str, [*await everything(self.lab), *await self.claims()])))
            if now == before:
                return
            before = now
        raise AssertionError("it still changes after 40 rounds")

    async def claims(self) -> Sequence[ResourceClaim]:
        return (await self.lab.client.list(RESOURCE_CLAIMS, Selection("lab"))).items

    async def follow(self) -> None:
        """The controller of claims has done its work, and the cache shows everything as it is."""
        await self.keep_claims()
        await catch_up(self.lab, self.replica)
        assert self.replica.device_claims is not None
        known = self.replica.device_claims.claims.store
        there = {each.metadata.uid: each.metadata.resource_version for each in await self.claims()}
        leases = (await self.lab.client.list(LEASES, Selection("carrel"))).items
        held = {each.metadata.name: each.metadata.resource_version for each in leases}

        def has_caught_up() -> bool:
            ours = {each.metadata.uid: each.metadata.resource_version for each in known}
            seen = {each.metadata.name: each.metadata.resource_version for each in self.replica.leases.store}
            return ours == there and seen == held

        await eventually(has_caught_up, "the cache shows claims and Leases as they are")

    async def keep_claims(self) -> None:
        """What the controller of claims does: it makes claims by templates, and frees those whose pods are gone."""
        await self._make_claims()
        await self._free_claims()

    async def _pods(self) -> Sequence[Pod]:
        return (await self.lab.client.list(PODS, Selection("lab"))).items

    async def _make_claims(self) -> None:
        for pod in await self._pods():
            made = {each.name for each in pod.status.resource_claim_statuses}
            for each in pod.spec.resource_claims:
                if each.resource_claim_template_name and each.name not in made:
                    await self._make_claim(pod, each.name, each.resource_claim_template_name)

    async def _make_claim(self, pod: Pod, name: str, template: str) -> None:
        spec = (await self.lab.client.get(RESOURCE_CLAIM_TEMPLATES, template, "lab"))["spec"]["spec"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"{pod.metadata.name}-{name}", "ownerReferences": [{**owner, "controller": True}]},
            "spec": spec,
        }
        made = await self.lab.client.create(RESOURCE_CLAIMS, body, "lab")
        status = {"resourceClaimStatuses": [{"name": name, "resourceClaimName": made["metadata"]["name"]}]}
        await set_status(self.lab, pod.metadata.name, status)

    async def _free_claims(self) -> None:
        """Whose pods are gone."""
        there = {pod.metadata.uid for pod in await self._pods() if pod.status.phase not in ("Succeeded", "Failed")}
        for claim in await self.claims():
            users = [each.uid for each in claim.status.reserved_for]
            if users and not there.issuperset(users):
                found = await self.lab.client.get(RESOURCE_CLAIMS, claim.metadata.name, "lab")
                left = [each for each in found["status"]["reservedFor"] if each["uid"] in there]
                status = {**found["status"], "reservedFor": left} if left else {}
                await store(self.lab, {**found, "status": status})
            owners = {each.uid for each in claim.metadata.owner_references}
            if owners and not owners & there:
                await self.lab.client.delete(
                    RESOURCE_CLAIMS, claim.metadata.name, "lab", how=DeleteOptions(grace_seconds=0)
                )

    # --- the scheduler -----------------------------------------------------------------------------------------------

    async def schedule(self) -> None:
        await self.follow()
        await self.place_pods(self.follow)

    async def place_pods(self, after_each: Callable[[], Awaitable[None]]) -> None:
        for pod in sorted(await self._pods(), key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)):
            if pod.spec.resource_claims and is_waiting(pod):
                await self._place(pod)
                await after_each()

    async def _place(self, pod: Pod) -> None:
        made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        names = [each.resource_claim_name or made[each.name] for each in pod.spec.resource_claims]
        node = ""
        for name in names:
            found = await self._allocated_to(name, pod)
            if not found:
                if not pod.status.conditions:
                    await mark_unschedulable(self.lab, pod.metadata.name)
                return
            node = found
        await self.lab.client.bind(BindTarget("lab", pod.metadata.name, pod.metadata.uid, node))
        await set_status(self.lab, pod.metadata.name, {"phase": "Running", "startTime": self.lab.clock.now.isoformat()})

    async def _allocated_to(self, name: str, pod: Pod) -> str:
        """The node where the claim has its GPUs now; empty: it has none."""
        claim = await self.lab.client.get(RESOURCE_CLAIMS, name, "lab")
        consumer = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
        if allocation := claim.get("status", {}).get("allocation"):
            reserved = claim["status"].get("reservedFor", [])
            if consumer not in reserved:
                await store(self.lab, {**claim, "status": {**claim["status"], "reservedFor": [*reserved, consumer]}})
            return str(allocation["devices"]["results"][0]["pool"])
        asked = claim["spec"]["devices"]["requests"][0]["exactly"]
        amount = asked.get("capacity", {}).get("requests", {}).get("memory", "")
        for node in self.nodes:
            for first in range(len(node.gpus) - asked["count"] + 1):
                given = {f"{node.name}/gpu-{gpu.index}": amount for gpu in node.gpus[first : first + asked["count"]]}
                after = allocated(claim, given)
                after["status"]["reservedFor"] = [consumer]
                refusal = await self.gate.ask(after, claim)
                if refusal is None:
                    await store(self.lab, after)
                    return node.name
                self.refusals.append(str(refusal))
        return ""


@asynccontextmanager
async def a_lab_with_slices(*nodes: Node, has_booker: bool = False) -> AsyncIterator[Lab]:
    async with a_lab(nodes, has_booker=has_booker) as lab:
        await publish(lab, *nodes)
        await new_class(lab, "gpu.carrel.dev")
        yield lab


@asynccontextmanager
async def a_claim_lab(*nodes: Node, has_booker: bool = False, **controller: Any) -> AsyncIterator[ClaimLab]:
    async with a_lab_with_slices(*nodes, has_booker=has_booker) as lab, lab.replica(dra=True) as replica:
        yield ClaimLab(lab, replica, nodes, **controller)
