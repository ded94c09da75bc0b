"""The status of a GpuClaim shows which GPUs its pod has by the Leases, or what it waits for."""

from typing import Any

import pytest

from carrel.dialects.gpuclaim import ClaimPhase
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GpuClaim
from carrel.kubernetes.cluster import BindTarget, Conflict, DeleteOptions, Forbidden, Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.lifecycle.reporting.claim_status import ClaimState, ClaimStatusWriter
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.coexist_node import a_coexist_node
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, Replica, a_lab

TWO_GPUS = {"devices": {"count": 2}}
NAMES_IT = {"gpu.scheduling/claim": "two-gpus"}


class Writer:
    """Writes the status of claims as the controller does."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.claims = ClaimStatusWriter(replica)

    async def write(self, lab: Lab, name: str = "two-gpus") -> ClaimState | None:
        """Waits until the cache has everything that the API server has."""
        claim = await lab.client.get(GPU_CLAIMS, name, "lab")
        pods = {pod.metadata.uid: pod.metadata.resource_version for pod in (await lab.client.list(PODS)).items}
        recorded = (await lab.client.list(LEASES, Selection("carrel"))).items
        leases = {each.metadata.uid: each.metadata.resource_version for each in recorded}

        def is_here() -> GpuClaim | None:
            found = self.replica.claims.store.get(name, "lab")
            same = found and found.metadata.resource_version == claim["metadata"]["resourceVersion"]
            seen = {pod.metadata.uid: pod.metadata.resource_version for pod in self.replica.pods.store}
            known = {lease.uid: lease.version for lease in self.replica.cluster_ledger.leases()}
            return found if same and seen == pods and known == leases else None

        found = await eventually(is_here, f"the claim {name}, all pods and Leases in the cache")
        assert found is not None
        return await self.claims.write(found)


async def a_claim(lab: Lab, spec: Json, name: str = "two-gpus") -> None:
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": name}, "spec": spec}
    await lab.client.create(GPU_CLAIMS, body, "lab")


async def status(lab: Lab, name: str = "two-gpus") -> dict[str, Any]:
    found: dict[str, Any] = (await lab.client.get(GPU_CLAIMS, name, "lab")).get("status", {})
    return found


async def test_a_claim_that_no_pod_names_is_pending() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)

        await Writer(replica).write(lab)

        assert await status(lab) == {
            "phase": "Pending",
            "gpuIds": [],
            "message": "no pod names this claim yet",
            "observedGeneration": 1,
        }


async def test_a_claim_whose_pod_waits_has_the_reason_of_the_pod() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        pod = await replica.sees(await lab.pod("train", annotations=NAMES_IT))
        why = replica.waiting_reason.why(pod)
        assert why is not None

        await Writer(replica).write(lab)

        written = await status(lab)
        assert (written["phase"], written["message"]) == ("Pending", why.reason)


async def test_a_claim_whose_pod_is_bound_shows_its_gpus_and_its_node() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        assert await replica.bind(await lab.pod("train", annotations=NAMES_IT), "n1") is None

        await Writer(replica).write(lab)

        written = await status(lab)
        assert (written["phase"], written["nodeName"], written["gpuIds"]) == ("Bound", "n1", [0, 1])
        assert written["allocated"] == "n1:0,1"
        assert "message" not in written


async def test_a_claim_whose_gpus_are_taken_but_whose_pod_is_not_bound_is_reserved() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab:
        await a_claim(lab, TWO_GPUS)
        pod = await lab.pod("train", annotations=NAMES_IT)
        async with lab.replica(Faulty(lab.api, FaultPlan(seed=1, crash_after_write=2))) as dies:
            with pytest.raises(Crashed):
                await dies.bind(pod, "n1")

        async with lab.replica() as replica:
            await Writer(replica).write(lab)

        written = await status(lab)
        assert (written["phase"], written["nodeName"], written["gpuIds"]) == ("Reserved", "n1", [0, 1])


async def test_annotations_that_a_user_forged_give_no_gpus() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        await lab.pod("train", annotations={**NAMES_IT, "gpu.scheduling/allocated": "0,1"})

        await Writer(replica).write(lab)

        assert (await status(lab))["gpuIds"] == []


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param(
            {"devices": {"count": 1, "exclusivity": "MIG", "memoryMiB": 5}}, "memoryMiB", id="a part of a MIG slice"
        ),
        pytest.param({"devices": {"count": 1, "memoryMiB": 5}}, "memoryMiB", id="a part of an exclusive GPU"),
    ],
)
async def test_a_claim_that_can_never_be_met_has_failed(spec: Json, complaint: str) -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await a_claim(lab, spec)

        await Writer(replica).write(lab)

        written = await status(lab)
        assert written["phase"] == "Failed"
        assert complaint in written["message"]


async def test_a_claim_whose_pod_was_bound_without_carrel_has_failed() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        pod = await lab.pod("train", annotations=NAMES_IT)
        await lab.client.bind(BindTarget("lab", "train", pod["metadata"]["uid"], "n1"))

        await Writer(replica).write(lab)

        written = await status(lab)
        assert (written["phase"], written["gpuIds"]) == ("Failed", [])
        assert "no Lease" in written["message"]


async def test_a_claim_that_several_pods_name_shows_the_oldest_that_has_not_finished() -> None:
    async with a_lab([a_node("n1", gpus=4), a_node("n2", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        for name, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
            assert await replica.bind(await lab.pod(name, annotations=NAMES_IT), node) is None
        writer = Writer(replica)

        await writer.write(lab)
        written = await status(lab)
        assert written["allocated"] == "n1:0,1"
        assert written["message"] == "shown is a, the oldest of 3 pods that name this claim"

        done = MergePatch({"status": {"phase": "Succeeded"}})
        await lab.client.patch(PODS, "a", done, "lab", subresource="status")
        await writer.write(lab)
        assert (await status(lab))["allocated"] == "n2:0,1"


async def test_a_claim_is_released_when_its_pod_has_finished() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        assert await replica.bind(await lab.pod("train", annotations=NAMES_IT), "n1") is None
        await Writer(replica).write(lab)
        done = MergePatch({"status": {"phase": "Failed"}})
        await lab.client.patch(PODS, "train", done, "lab", subresource="status")

        await Writer(replica).write(lab)

        written = await status(lab)
        assert written["phase"] == "Released"
        assert "allocated" not in written
        assert "finished" in written["message"]


async def test_a_pod_that_is_being_deleted_still_has_its_gpus() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        assert await replica.bind(await lab.pod("train", annotations=NAMES_IT), "n1") is None
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=30))

        await Writer(replica).write(lab)

        written = await status(lab)
        assert (written["phase"], written["allocated"]) == ("Bound", "n1:0,1")
        assert "being deleted" in written["message"]


async def test_a_status_is_written_only_when_it_changes() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        assert await Writer(replica).write(lab) is not None
        before = (await lab.client.get(GPU_CLAIMS, "two-gpus", "lab"))["metadata"]["resourceVersion"]

        assert await Writer(replica).write(lab) is None

        assert (await lab.client.get(GPU_CLAIMS, "two-gpus", "lab"))["metadata"]["resourceVersion"] == before


async def test_a_status_names_the_generation_of_the_claim() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        await Writer(replica).write(lab)
        await lab.client.patch(GPU_CLAIMS, "two-gpus", MergePatch({"spec": {"devices": {"count": 3}}}), "lab")

        await Writer(replica).write(lab)

        assert (await status(lab))["observedGeneration"] == 2


async def test_a_claim_that_changed_since_it_was_read_is_left_alone() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab, TWO_GPUS)
        old = await eventually(lambda: replica.claims.store.get("two-gpus", "lab"))
        assert old is not None
        await lab.client.patch(GPU_CLAIMS, "two-gpus", MergePatch({"metadata": {"labels": {"a": "b"}}}), "lab")

        with pytest.raises(Conflict):
            await Writer(replica).claims.write(old)

        assert await status(lab) == {}


async def test_after_a_crash_right_after_the_write_nothing_is_written_again() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab:
        await a_claim(lab, TWO_GPUS)
        async with lab.replica(Faulty(lab.api, FaultPlan(seed=1, crash_after_write=1))) as dies:
            with pytest.raises(Crashed):
                await Writer(dies).write(lab)

        async with lab.replica() as replica:
            assert await Writer(replica).write(lab) is None


async def test_a_pod_that_also_asks_the_kubelet_is_told_its_gpus_when_the_agent_knows_them() -> None:
    """Where the kubelet chooses, the Binding cannot say them."""
    async with a_coexist_node() as node_lab:
        lab, writer = node_lab.lab, Writer(node_lab.replica)
        await a_claim(lab, {"devices": {"count": 1}})
        await eventually(lambda: node_lab.replica.claims.store.get("two-gpus", "lab"))
        await node_lab.run_pod("a", annotations=NAMES_IT, limits={"nvidia.com/gpu": "1"})
        await node_lab.kubelet.work()
        unknown = "the kubelet of n1 chooses the GPUs; its agent has not said yet which"
        assert await writer.write(lab) == ClaimState(ClaimPhase.BOUND, unknown, N1)
        assert "gpu.scheduling/allocated" not in await lab.annotations("a")

        await node_lab.kubelet.report_users()
        ledger = node_lab.replica.cluster_ledger
        await eventually(lambda: ledger.users_of(node_lab.kubelet.node.gpus[1]))
        assert await writer.write(lab) == ClaimState(ClaimPhase.BOUND, "", N1, (1,))
        assert (await lab.annotations("a"))["gpu.scheduling/allocated"] == "n1:1"


async def test_a_pod_that_cannot_be_told_does_not_keep_its_claim_from_showing_the_gpus() -> None:
    """Policies of an older release do not let the controller write it."""
    async with a_coexist_node() as node_lab:
        lab, writer, cluster = node_lab.lab, Writer(node_lab.replica), node_lab.replica.cluster
        await a_claim(lab, {"devices": {"count": 1}})
        await eventually(lambda: node_lab.replica.claims.store.get("two-gpus", "lab"))
        await node_lab.run_pod("a", annotations=NAMES_IT, limits={"nvidia.com/gpu": "1"})
        await node_lab.kubelet.work()
        await node_lab.kubelet.report_users()
        ledger, allowed = node_lab.replica.cluster_ledger, cluster.patch
        await eventually(lambda: ledger.users_of(node_lab.kubelet.node.gpus[1]))

        async def patch(resource, *given, **named):  # type: ignore[no-untyped-def]
            if resource is PODS:
                raise Forbidden(403, "Forbidden", "only Carrel writes gpu.scheduling/allocated")
            return await allowed(resource, *given, **named)

        cluster.patch = patch  # type: ignore[method-assign]
        with pytest.raises(Forbidden):  # it is tried again
            await writer.write(lab)

        assert (await status(lab))["allocated"] == "n1:1"
