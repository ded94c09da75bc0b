"""The ledger follows the cluster, and a GPU is unusable while its records contradict each other."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from carrel.cluster.options import ClusterOptions
from carrel.cluster.record.cluster_ledger import ClusterLedger
from carrel.cluster.record.known_lease import KnownLease
from carrel.dialects import gpuclaim
from carrel.dialects.gpu_lease import LeaseRecord, write_lease
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.dialects.options import DialectOptions, Unit
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.ledger import LedgerError
from carrel.ledger.placement import Placement
from carrel.ledger.shares import Share
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_gpu, a_node, holder, memory, whole
from tests.kit.lab import a_lab
from tests.kit.reviews import a_state

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def status(node: Node, heartbeat: datetime = NOW, **metadata: Any) -> GpuNodeStatus:
    body = gpuclaim.node_status(node, {}, heartbeat)
    return msgspec.convert({**body, "metadata": {**body["metadata"], **metadata}}, GpuNodeStatus)


def ledger_with(*nodes: Node) -> ClusterLedger:
    cluster_ledger = a_state().cluster_ledger
    for node in nodes:
        cluster_ledger.on_node_status(None, status(node))
    return cluster_ledger


def a_lease(index: int, gpu: str, pod: str, mib: int | None, version: int) -> KnownLease:
    share = Share(holder(pod), GpuUuid(gpu), None if mib is None else MiB(mib))
    return KnownLease(f"gpu-n1-{index}", f"lease-{index}", str(version), LeaseRecord(N1, index, GpuUuid(gpu), (share,)))


def test_a_gpu_on_two_leases_counts_both_and_is_unusable_until_one_is_gone() -> None:
    cluster_ledger = ledger_with(a_node("n1"))
    cluster_ledger.lease_written(a_lease(0, "GPU-n1-0", "a", 8000, 5))

    cluster_ledger.lease_written(a_lease(1, "GPU-n1-0", "b", 5000, 6))

    entry = cluster_ledger.ledger.entry(GpuUuid("GPU-n1-0"))
    assert entry is not None
    assert entry.free == 16276 - 13000
    assert "still recorded on Lease gpu-n1-1" in entry.gpu.unusable

    cluster_ledger.lease_deleted("gpu-n1-1", "lease-1")
    entry = cluster_ledger.ledger.entry(GpuUuid("GPU-n1-0"))
    assert entry is not None
    assert (entry.free, entry.gpu.unusable) == (16276 - 8000, "")


def shown(lease: KnownLease, version: int) -> Lease:
    """As the watch shows it."""
    body = write_lease(lease.record, "carrel", NOW)
    return msgspec.convert(
        {**body, "metadata": {**body["metadata"], "uid": lease.uid, "resourceVersion": str(version)}}, Lease
    )


def test_the_answer_to_a_write_does_not_replace_a_later_change() -> None:
    """The watch may show both before this process reads its answer."""
    cluster_ledger = ledger_with(a_node("n1"))
    ours, later = a_lease(0, "GPU-n1-0", "a", 8000, 10), a_lease(0, "GPU-n1-0", "b", 5000, 11)
    cluster_ledger.on_lease(None, shown(ours, 10))
    cluster_ledger.on_lease(shown(ours, 10), shown(later, 11))
    cluster_ledger.lease_written(ours)
    assert cluster_ledger.ledger.holders() == {"uid-b"}


async def test_no_late_answer_brings_back_a_lease_that_was_deleted_since() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        ours = a_lease(0, "GPU-n1-0", "a", 8000, 10)
        written = await lab.client.create(LEASES, write_lease(ours.record, "carrel", NOW), "carrel")
        metadata = written["metadata"]
        await eventually(lambda: replica.cluster_ledger.lease("gpu-n1-0"))
        await lab.client.delete(LEASES, "gpu-n1-0", "carrel")
        await eventually(lambda: not replica.cluster_ledger.leases())

        answer = KnownLease("gpu-n1-0", metadata["uid"], metadata["resourceVersion"], ours.record)
        replica.cluster_ledger.lease_written(answer)
        replica.cluster_ledger.on_lease(None, msgspec.convert(written, Lease))  # read past the cache before it was gone

        assert not replica.cluster_ledger.leases()
        assert not replica.ledger.holders()


def test_a_node_status_that_names_another_node_is_ignored() -> None:
    cluster_ledger = ledger_with(a_node("n1"))

    cluster_ledger.on_node_status(None, status(a_node("n1", memory=999_999), name="intruder"))
    cluster_ledger.on_node_status(status(a_node("n1"), name="intruder"), None)

    assert [entry.gpu.memory for entry in cluster_ledger.ledger.entries(N1)] == [16276, 16276]
    assert cluster_ledger.ledger.nodes == ("n1",)


@pytest.mark.parametrize("off", [timedelta(hours=-1), timedelta(hours=1)], ids=["long ago", "in the future"])
def test_a_heartbeat_far_from_now_makes_a_node_unusable(off: timedelta) -> None:
    cluster_ledger = a_state().cluster_ledger
    cluster_ledger.on_node_status(None, status(a_node("n1"), NOW + off))

    cluster_ledger.mark_silent_agents(NOW)

    node = cluster_ledger.ledger.node(N1)
    assert node is not None
    assert "last heartbeat" in node.unusable


def test_an_index_that_cannot_be_in_a_lease_name_is_malformed() -> None:
    cluster_ledger = ledger_with(Node(N1, (a_gpu("n1", 10_000),)))

    node = cluster_ledger.ledger.node(N1)
    assert node is not None
    assert "status.devices[0].id is 10000; expected at most 9999" in node.unusable


def test_a_promise_is_for_all_gpus_or_none() -> None:
    cluster_ledger = ledger_with(a_node("n1"))
    cluster_ledger.lease_written(a_lease(1, "GPU-n1-1", "tenant", None, 5))
    both = Placement(N1, a_node("n1").gpus, whole(2))

    with pytest.raises(LedgerError):
        cluster_ledger.promise(both, holder("a"), "first")

    assert [entry.free for entry in cluster_ledger.ledger.entries(N1)] == [16276, 0]


@pytest.mark.parametrize("when", ["promised", "withdrawn"])
def test_a_listener_that_fails_keeps_no_promise_alive(when: str) -> None:
    cluster_ledger = ledger_with(a_node("n1", gpus=2))
    both = Placement(N1, tuple(entry.gpu for entry in cluster_ledger.ledger.entries(N1)), whole(2))

    def fails(uids: object) -> None:
        raise RuntimeError("a defect of a listener")

    if when == "promised":
        cluster_ledger.on_shares(fails)
    cluster_ledger.promise(both, holder("a"), "plan")
    assert len(cluster_ledger.ledger.shares_of(PodUid("uid-a"))) == 2
    if when == "withdrawn":
        cluster_ledger.on_shares(fails)

    cluster_ledger.withdraw(PodUid("uid-a"), "plan")

    assert not cluster_ledger.ledger.shares_of(PodUid("uid-a"))
    assert cluster_ledger.ledger.rooms[N1].whole == 2
    cluster_ledger.promise(both, holder("b"), "other")


def test_only_the_owner_of_a_promise_withdraws_it() -> None:
    cluster_ledger = ledger_with(a_node("n1", gpus=1))
    placement = Placement(N1, a_node("n1", gpus=1).gpus, memory(1000))
    cluster_ledger.promise(placement, holder("a"), "old plan")
    cluster_ledger.promise(placement, holder("a"), "new plan")

    cluster_ledger.withdraw(PodUid("uid-a"), "old plan")
    assert [entry.free for entry in cluster_ledger.ledger.entries(N1)] == [15276]

    cluster_ledger.withdraw(PodUid("uid-a"), "new plan")
    assert [entry.free for entry in cluster_ledger.ledger.entries(N1)] == [16276]


def test_a_node_whose_agent_uses_another_memory_unit_takes_no_new_pods() -> None:
    node = a_node("n1")
    body = gpuclaim.node_status(node, {}, NOW, gpuclaim.Remarks(memory_unit="4MiB"))
    cluster_ledger = a_state().cluster_ledger
    cluster_ledger.on_node_status(None, msgspec.convert(body, GpuNodeStatus))
    agreeing = a_state(options=ClusterOptions(dialect_options=DialectOptions(Unit.MIB_4))).cluster_ledger
    agreeing.on_node_status(None, msgspec.convert(body, GpuNodeStatus))

    node_of = {each: each.ledger.node(N1) for each in (cluster_ledger, agreeing)}
    assert [found.unusable for found in node_of.values() if found] == [
        "its agent counts memory in 4MiB, the scheduler in MiB; both follow memory.unit of the configuration",
        "",
    ]


def test_a_heartbeat_alone_changes_nothing_in_the_ledger() -> None:
    cluster_ledger = ledger_with(a_node("n1"))
    cluster_ledger.lease_written(a_lease(0, "GPU-n1-0", "a", 8000, 5))
    before = cluster_ledger.ledger.version

    cluster_ledger.on_node_status(status(a_node("n1")), status(a_node("n1"), NOW + timedelta(seconds=30)))
    assert cluster_ledger.ledger.version == before

    cluster_ledger.on_node_status(status(a_node("n1")), status(a_node("n1", gpus=1), NOW + timedelta(seconds=60)))
    assert [entry.free for entry in cluster_ledger.ledger.entries(N1)] == [16276 - 8000]


def test_a_pod_that_is_seen_after_the_report_which_names_it_holds_its_gpu_until_it_has_finished() -> None:
    state = a_state()
    cluster_ledger = state.cluster_ledger
    body = gpuclaim.node_status(a_node("n1", gpus=1), {GpuUuid("GPU-n1-0"): [PodUid("uid-late")]}, NOW)
    cluster_ledger.on_node_status(None, msgspec.convert(body, GpuNodeStatus))

    def free_after(old: Pod | None, phase: str, node: str = "n1") -> tuple[Pod, int]:
        late = {"metadata": {"name": "late", "uid": "uid-late"}, "spec": {"nodeName": node}, "status": {"phase": phase}}
        new = msgspec.convert(late, Pod)
        state.pods.store.put(new)
        cluster_ledger.on_pod(old, new)
        entry = cluster_ledger.ledger.entry(GpuUuid("GPU-n1-0"))
        assert entry is not None
        return new, entry.free

    unbound, free = free_after(None, "Pending", node="")
    assert free == 16276
    bound, free = free_after(unbound, "Pending")
    assert free == 0
    assert free_after(bound, "Succeeded")[1] == 16276


def test_a_report_that_comes_before_all_pods_are_known_is_understood_again_with_them() -> None:
    late = {"metadata": {"name": "late", "uid": "uid-late"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    state = a_state({PODS: [late]}, is_read=False)
    cluster_ledger = state.cluster_ledger
    body = gpuclaim.node_status(a_node("n1", gpus=1), {GpuUuid("GPU-n1-0"): [PodUid("uid-late")]}, NOW)
    cluster_ledger.on_node_status(None, msgspec.convert(body, GpuNodeStatus))

    entry = cluster_ledger.ledger.entry(GpuUuid("GPU-n1-0"))
    assert entry is not None and entry.free > 0
    for reflector in (state.pods, state.claims, state.leases):
        asyncio.run(reflector.read_once())

    entry = cluster_ledger.ledger.entry(GpuUuid("GPU-n1-0"))
    assert entry is not None and entry.free == 0
