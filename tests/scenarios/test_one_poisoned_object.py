"""Nobody's object stops a round: with one poisoned object among them, all others are served by every component.

`CARREL_INPUTS=10000` tries that many poisoned objects.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from carrel.admission.admission import PodAdmission
from carrel.admission.handlers import ReviewHandler
from carrel.admission.metrics import WebhookMetrics
from carrel.admission.options import AdmissionOptions
from carrel.bookings.cluster_view import ClusterView, pod_rows
from carrel.bookings.inventory import ClusterInventory
from carrel.bookings.pages import cluster_map
from carrel.bookings.pages.map_page import pod_on_map
from carrel.cluster.pod_progress import is_waiting
from carrel.cluster.record.adoption import Adoption
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import NAMESPACES, PODS, Resource
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.reporting.claim_status import ClaimStatusWriter
from carrel.node.allocation import DeviceAllocation
from carrel.node.comparison import AllocationMode, Comparison
from carrel.node.device_names import DeviceInventory
from carrel.node.interfaces import AllocatedDevices
from carrel.node.lease_check import LeaseCheck
from carrel.node.settings import AgentOptions
from carrel.scheduling.assembly import handlers_on
from tests.kit.eventually import eventually
from tests.kit.gpus import A100, A6000, N1, N2, N5, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.poison import NOTES, anything, of_kind, optional, poisoned_pods, store
from tests.kit.reviews import review
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    a_booked_pod,
    an_opportunistic_pod,
    an_unschedulable_booked_pod,
    catch_up,
    end_deleted,
    pods_of,
    set_status,
)

NODES = [a_node("n1", 1), a_node("n2", 1), a_node("n5", 8, memory=64, model=A100), a_node("n9", 1, model="poisoned")]
HEALTHY = (N1, N2, N5)
OWN_MODEL = {"carrel.dev/gpu-model": A6000}
OTHER_MODEL = {"carrel.dev/gpu-model": A100}

POISONS: dict[str, tuple[Resource[Any], st.SearchStrategy[Json]]] = {
    "a pod that waits": (PODS, poisoned_pods(is_bound=False)),
    "a pod that runs": (PODS, poisoned_pods(is_bound=True)),
    "a claim": (
        GPU_CLAIMS,
        of_kind(
            "gpu.scheduling/v1",
            "GpuClaim",
            "poison",
            spec=anything("devices", "count", "topology", "gangRef", "gangSize", "exclusivity", "memoryMiB"),
            status=anything("phase", "gpuIds", "nodeName", "observedGeneration"),
        ),
    ),
    "the report of a node": (
        GPU_NODE_STATUSES,
        of_kind(
            "gpu.scheduling/v1",
            "GpuNodeStatus",
            "n9",
            spec=anything("nodeName"),
            status=anything("devices", "id", "uuid", "memoryMiB", "health", "heartbeat", "inUseBy", "mode"),
        ),
    ),
    "a booking": (
        BOOKINGS,
        of_kind(
            "carrel.dev/v1alpha1",
            "Booking",
            "poison",
            spec=anything("user", "members", "group", "gpus", "start", "end", "model", "share", "namespace"),
            status=anything("used", "pods"),
        ),
    ),
    "a namespace": (
        NAMESPACES,
        optional(annotations=NOTES, labels=NOTES).map(
            lambda more: {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {**more, "name": "elsewhere", "uid": "uid-elsewhere"},
            }
        ),
    ),
}
INPUTS = int(os.environ.get("CARREL_INPUTS", "60")) // len(POISONS)


def a_pod(**parts: Mapping[str, Any]) -> Json:
    metadata = {"name": "poison", "namespace": "lab", "uid": "uid-poison", "creationTimestamp": "2026-11-16T12:00:00Z"}
    container = {"name": "main", "image": "work", "resources": {"limits": WHOLE}, **parts.get("container", {})}
    spec = {"schedulerName": "gpu-scheduler", "containers": [container], **parts.get("spec", {})}
    notes = {**BOOKED, **parts.get("annotations", {})}
    cannot_be_placed = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "annotations": notes},
        "spec": spec,
        "status": {"conditions": cannot_be_placed, **parts.get("status", {})},
    }


def affinity(operator: str, *values: str) -> Json:
    requirement = {"key": "kubernetes.io/hostname", "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


KNOWN = {
    "an operand of Gt that is no number, as servers before 1.32 accepted": a_pod(spec=affinity("Gt", "--5")),
    "an operand of Lt with 5,000 digits": a_pod(spec=affinity("Lt", "9" * 5000)),
    "an operand that only Unicode calls a digit": a_pod(spec=affinity("Gt", "²")),
    "a quantity that cannot be read": a_pod(container={"resources": {"limits": {"nvidia.com/gpu": "1e99999"}}}),
    "an end that cannot be read": a_pod(annotations={"terminate-at": "2026-02-30T00:00:00Z\n"}),
    "a gang without end": a_pod(annotations={"pod-group-name": "g", "carrel.dev/gang-size": "9" * 5000}),
    "a start before all time": a_pod(status={"startTime": "0001-01-01T00:00:00+23:59"}),
    "a grace below zero": a_pod(spec={"terminationGracePeriodSeconds": -5}),
    "nothing wrong, but no tier": a_pod() | {"metadata": {**a_pod()["metadata"], "annotations": {}}},
    "text that rewrites a terminal": a_pod(annotations={"carrel.dev/gpu-model": "\x1b[2J\nforged=1"}),
}


class Cluster:
    """Healthy objects that each need something, and one poisoned object."""

    def __init__(self, lab: Lab, replica: Replica) -> None:
        self.lab, self.replica = lab, replica
        self.controller = TierController(replica)
        metrics = WebhookMetrics()
        watched = len(replica.informers.reflectors)
        self.webhook = ReviewHandler(PodAdmission(replica, AdmissionOptions()), metrics, lambda: True)
        self.extender = handlers_on(replica, replica.scheduler)
        self.view = ClusterView(replica)
        self._only_of_webhook = replica.informers.reflectors[watched:]

    async def prepare(self) -> None:
        lab, replica = self.lab, self.replica
        for reflector in self._only_of_webhook:
            await reflector.read_once()
        await an_opportunistic_pod(lab, replica, "victim", "n1")
        await an_opportunistic_pod(lab, replica, "over", "n2")
        has_ended = {"carrel.dev/tier": "booked", "terminate-at": "2026-11-16T11:00:00Z"}
        await lab.client.patch(PODS, "over", MergePatch({"metadata": {"annotations": has_ended}}), "lab")
        await a_booked_pod(lab, replica, "gone", "n5")
        await an_unschedulable_booked_pod(lab, "urgent", annotations={**BOOKED, **OWN_MODEL})
        await lab.book("gate@lab.example", name="begun")
        gated = {"carrel.dev/user": "gate@lab.example", "carrel.dev/booking": "begun", **OTHER_MODEL}
        await lab.pod("gated", limits=WHOLE, annotations=OPPORTUNISTIC | gated, gates=["carrel.dev/booking"])
        await lab.book("soon@lab.example", name="soon", end=lab.clock.now + timedelta(minutes=10))
        await eventually(lambda: replica.bookings.store.get("soon"), "the booking in the cache")
        soon = {**BOOKED, "carrel.dev/user": "soon@lab.example"}
        await an_opportunistic_pod(lab, replica, "soon", "n5", annotations=soon)
        for name, limits in (("small", WHOLE), ("memory", {"aliyun.com/gpu-mem": "32"})):
            await lab.pod(name, limits=limits, annotations=OPPORTUNISTIC | OTHER_MODEL)
        claim = {"apiVersion": GPU_CLAIMS.api_version, "kind": "GpuClaim", "metadata": {"name": "healthy"}}
        await lab.client.create(GPU_CLAIMS, {**claim, "spec": {"devices": {"count": 1}}}, "lab")
        await lab.client.delete(PODS, "gone", "lab", how=DeleteOptions(grace_seconds=0))

    async def rounds(self) -> None:
        """What the leader, a scheduler with the extender, and the kubelets do."""
        for _ in range(4):
            await catch_up(self.lab, self.replica)
            await self.controller.round()
            await catch_up(self.lab, self.replica)
            await self._schedule()
            await end_deleted(self.lab)
        await catch_up(self.lab, self.replica)

    async def _schedule(self) -> None:
        """For the poisoned pod kube-scheduler asks, and never finds a node."""
        for pod in self.replica.pods.store:
            if not is_waiting(pod):
                continue
            found = self.replica.scheduler.filter(pod, HEALTHY)
            is_healthy = pod.metadata.name != "poison" and pod.spec.scheduler_name == "gpu-scheduler"
            if is_healthy and not isinstance(found, Refusal) and found.fitting:
                assert await self.replica.scheduler.bind(pod, min(found.fitting)) is None
                if pod.metadata.name != "memory":  # its kubelet asks the agent later
                    await set_status(self.lab, pod.metadata.name, {"phase": "Running"})

    # --- what each component does for the healthy ones ---------------------------------------------------------------

    async def check_controller(self) -> None:
        pods = await pods_of(self.lab)
        assert pods["urgent"].spec.node_name == "n1", "revocation"
        for name in ("victim", "over"):
            assert "carrel.dev/handed-over" in pods[name].metadata.annotations, f"hand-over of {name}"
        assert not pods["gated"].spec.scheduling_gates, "gates"
        assert "carrel.dev/warned" in pods["soon"].metadata.annotations, "warnings"
        assert "carrel.dev/notice" in pods["soon"].metadata.annotations, "notices"
        held = {uid for shares in (await self.lab.held()).values() for uid in shares}
        assert held <= {pod.metadata.uid for pod in pods.values()}, "collection"
        claims = ClaimStatusWriter(self.replica)
        for claim in self.replica.claims.store:
            if claim.metadata.name == "healthy":
                await claims.write(claim)
        written = await self.lab.client.get(GPU_CLAIMS, "healthy", "lab")
        assert written["status"]["phase"] == "Pending", "claim status"
        await Adoption(self.replica).record()

    async def check_extender(self, poison: Json | None) -> None:
        pods = await pods_of(self.lab)
        for name in ("small", "memory", "gated"):
            assert pods[name].spec.node_name == "n5", f"{name} is placed"
        another = await self.lab.pod("another", limits=WHOLE, annotations={**OPPORTUNISTIC, **OTHER_MODEL})
        asked = {"Pod": another, "NodeNames": list(HEALTHY)}
        answer = json.loads(self.extender.filter(json.dumps(asked).encode()).body)
        assert (answer["Error"], answer["NodeNames"]) == ("", ["n5"])
        assert self.extender.prioritize(json.dumps(asked).encode()).status == 200
        self.extender.inspect()
        if poison is not None:
            body = json.dumps({"Pod": poison, "NodeNames": list(HEALTHY)}).encode()
            assert self.extender.filter(body).status == 200
            assert self.extender.prioritize(body).status in (200, 400)

    async def check_webhook(self, poison: Json | None) -> None:
        metadata, container = {"name": "new", "namespace": "lab"}, {"name": "main", "resources": {"limits": WHOLE}}
        healthy = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        answer = await self.webhook.mutate(json.dumps(review(healthy, "booker@lab.example")).encode())
        assert answer.status == 200
        assert json.loads(answer.body)["response"]["allowed"], answer.body
        if poison is not None:
            reviewed = await self.webhook.mutate(json.dumps(review(poison, "eve@lab.example")).encode())
            assert reviewed.status == 200, reviewed.body

    async def check_pages(self) -> None:
        rows = pod_rows(self.view, "booker@lab.example", self.replica.words)
        assert "lab/urgent" in {row.name for row in rows}
        for name in self.replica.ledger.nodes:
            node, entries = self.replica.ledger.node(name), self.view.entries(name)
            cluster_map.node_on_map(name, node, entries, lambda uid: pod_on_map(self.view, uid, self.replica.words))
        self.view.looks.take(with_usage=True)
        self._end_promises()
        inventory = ClusterInventory(self.replica)
        assert inventory.stock()[A6000].gpus == 2
        inventory.next_unheld()

    def _end_promises(self) -> None:
        """The extender is another process: what it has only promised, to a poisoned pod too, the pages never see."""
        self.lab.clock.now += timedelta(seconds=31)
        self.replica.scheduler.expire_promises()
        self.lab.clock.now -= timedelta(seconds=31)

    async def check_agent(self) -> None:
        """Of the node n5, on which the poisoned pod is, too."""
        replica, node = self.replica, a_node("n5", 8, memory=64, model=A100)
        pods = [_on_n5(pod) if pod.metadata.name == "poison" else pod for pod in replica.pods.store]
        rows = [
            AllocatedDevices(pod.metadata.namespace, pod.metadata.name, "main", "nvidia.com/gpu", ("GPU-n5-0",))
            for pod in pods
            if pod.metadata.name == "poison"
        ]
        check, inventory = LeaseCheck(self.lab.client, N5, "carrel"), DeviceInventory(node.gpus)
        allocation = DeviceAllocation(
            self.lab.client, AgentOptions(node_name=N5), check, pods, self.lab.clock, clock=self.lab.clock.seconds
        )
        allocation.update(inventory, rows)
        units = [device.id for device in inventory.memory_devices()][:32]
        answer = await allocation.allocate("aliyun.com/gpu-mem", units)
        assert isinstance(answer, Mapping), answer
        await allocation.mark_assigned()
        assert (await self.lab.annotations("memory"))["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
        comparison = Comparison(self.lab.client, check, self.lab.clock)
        for how in (AllocationMode(), AllocationMode(memory_on_node=True), AllocationMode(kubelet_chooses=True)):
            result = await comparison.compare(pods, rows, inventory, how)
            await comparison.write_events(result.mismatches)


def _on_n5(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="n5"))


async def serves_the_others(resource: Resource[Any], poison: Json) -> None:
    async with a_lab(NODES) as lab, lab.replica() as replica:
        cluster = Cluster(lab, replica)
        await cluster.prepare()
        store(lab.api, resource, poison)
        metadata = poison["metadata"]
        reflector = next(each for each in replica.informers.reflectors if each.resource == resource)
        version = lab.api.store.version

        def is_seen() -> bool:
            found = reflector.store.get(metadata["name"], metadata.get("namespace", ""))
            return found is not None and int(found.metadata.resource_version) >= version

        await eventually(is_seen, "the poisoned object in the cache")
        pod = poison if resource is PODS else None
        await cluster.rounds()
        await cluster.check_controller()
        await cluster.check_extender(pod)
        await cluster.check_webhook(pod)
        await cluster.check_pages()
        await cluster.check_agent()


@pytest.mark.parametrize("poison", KNOWN.values(), ids=KNOWN.keys())
async def test_a_pod_that_once_stopped_a_round(poison: Json) -> None:
    await serves_the_others(PODS, poison)


@pytest.mark.parametrize("kind", POISONS)
@settings(
    max_examples=max(INPUTS, 1),
    derandomize="CARREL_INPUTS" not in os.environ,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(data=st.data())
def test_all_others_are_served_beside(kind: str, data: st.DataObject) -> None:
    resource, strategy = POISONS[kind]
    poison = data.draw(strategy)
    asyncio.run(serves_the_others(resource, poison))
