"""What must always hold is counted again from the objects alone, and each thing that breaks it is named."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carrel.cluster.invariants import TOLERATED, Invariant, LastingViolations, Observed, Violation, observe, violations
from carrel.dialects.gpu_lease import LeaseRecord, write_lease
from carrel.dialects.gpuclaim import node_status
from carrel.ids import BookingId, GpuUuid, HolderId, PersonId, PodUid
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Coverage, Holder, HolderKind, Share
from carrel.ledger.slots import Reservation, ReservationState
from tests.kit import objects
from tests.kit.gpus import a_node, holder

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)
N1 = a_node("n1", gpus=2, memory=16000)


def a_pod(name: str, node: str = "n1", devices: str = "", phase: str = "Running", **metadata: Any) -> Pod:
    notes = {"carrel.dev/devices": devices} if devices else {}
    return objects.pod_from(
        {
            "metadata": {"name": name, "namespace": "lab", "uid": f"uid-{name}", "annotations": notes, **metadata},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase},
        }
    )


def a_share(pod: str, index: int = 0, mib: int | None = None, booking: str = "") -> Share:
    coverage = Coverage(BookingId(booking), NOON) if booking else None
    return Share(holder(pod), GpuUuid(f"GPU-n1-{index}"), None if mib is None else MiB(mib), coverage=coverage)


def a_lease(*shares: Share, index: int = 0, gpu: str = "", **fields: Any) -> LeaseRecord:
    return LeaseRecord(N1.name, index, GpuUuid(gpu or f"GPU-n1-{index}"), shares, **fields)


def a_booking(name: str = "b", gpus: int = 1, end: datetime = NOON + DAY) -> Entitlement:
    return Entitlement(BookingId(name), frozenset({PersonId("ada")}), "", gpus, NOON - DAY, end)


def seen(
    *leases: LeaseRecord,
    pods: tuple[Pod, ...] = (a_pod("a"), a_pod("b"), a_pod("c")),
    bookings: tuple[Entitlement, ...] = (),
    users: dict[GpuUuid, list[HolderId]] | None = None,
    orphans: tuple[str, ...] | None = (),
    heartbeat: datetime = NOON,
) -> Observed:
    body = node_status(N1, users or {}, heartbeat)
    body["metadata"] = {"name": "n1"}
    body["status"]["orphans"] = orphans
    status = objects.gpu_node_status(body)
    by_uid: dict[HolderId, Pod] = {pod.metadata.uid: pod for pod in pods}
    return Observed([N1], {N1.name: status}, leases, {}, by_uid, {each.booking: each for each in bookings}, NOON)


BY_CLAIM = Share(Holder(PodUid("uid-c"), "lab", "c", HolderKind.CLAIM), GpuUuid("GPU-n1-0"), None)


def found(observed: Observed) -> dict[str, str]:
    return {each.invariant.value: each.words for each in violations(observed)}


GOOD = [
    pytest.param(seen(), id="nobody holds anything"),
    pytest.param(seen(a_lease(a_share("a", mib=8000), a_share("b", mib=8000))), id="a GPU is promised to the last MiB"),
    pytest.param(seen(a_lease(a_share("a"))), id="one pod holds a whole GPU"),
    pytest.param(
        seen(a_lease(a_share("a")), pods=(a_pod("a", node=""),)), id="the Lease is written before the pod is bound"
    ),
    pytest.param(
        seen(a_lease(a_share("gone")), orphans=("uid-gone",)), id="a pod is gone, and its containers still run"
    ),
    pytest.param(
        seen(a_lease(a_share("gone")), heartbeat=NOON - timedelta(minutes=10)),
        id="a pod is gone, and its node has not confirmed it",
    ),
    pytest.param(seen(a_lease(BY_CLAIM)), id="a ResourceClaim holds a GPU, and nobody reads claims"),
    pytest.param(
        replace(seen(a_lease(BY_CLAIM)), resource_claims={"uid-c"}), id="a ResourceClaim that exists holds a GPU"
    ),
    pytest.param(
        seen(
            a_lease(a_share("a")),
            pods=(a_pod("a", devices="GPU-n1-0"),),
            users={GpuUuid("GPU-n1-0"): [PodUid("uid-a")]},
        ),
        id="a pod uses the GPU that its Lease names",
    ),
    pytest.param(
        seen(pods=(a_pod("a"),), users={GpuUuid("GPU-n1-0"): [PodUid("uid-a")]}),
        id="a pod from before Carrel has no Lease yet",
    ),
    pytest.param(
        seen(pods=(a_pod("a", devices="GPU-n1-0", phase="Succeeded"),)), id="a pod that has finished has no Lease"
    ),
    pytest.param(
        seen(a_lease(a_share("a", mib=1, booking="b"), a_share("b", mib=1, booking="b")), bookings=(a_booking(),)),
        id="two covered pods on one booked GPU",
    ),
]


@pytest.mark.parametrize("observed", GOOD)
def test_nothing_is_found_where_all_is_well(observed: Observed) -> None:
    assert violations(observed) == []


BAD = [
    pytest.param(
        seen(a_lease(a_share("a", mib=8000), a_share("b", mib=8001))),
        {"memory_exceeded": "GPU 0 of n1 has 16000 MiB, and 16001 MiB are promised"},
        id="one MiB more than the GPU has",
    ),
    pytest.param(
        seen(a_lease(a_share("a"), a_share("b", mib=1))),
        {"whole_gpu_shared": "GPU 0 of n1 is held whole by lab/a, and also by lab/b"},
        id="a whole GPU and a part of it",
    ),
    pytest.param(
        seen(a_lease(a_share("a", mib=9000)), a_lease(a_share("b", mib=9000), index=1, gpu="GPU-n1-0")),
        {
            "gpu_on_two_leases": "GPU GPU-n1-0 is recorded on the Leases gpu-n1-0, gpu-n1-1",
            "memory_exceeded": "GPU 0 of n1 has 16000 MiB, and 18000 MiB are promised",
        },
        id="the same GPU on two Leases",
    ),
    pytest.param(
        seen(
            *(
                a_lease(
                    a_share(pod),
                    index=i,
                    gpu=f"n1/{i}",
                    reservation=Reservation(ReservationState.HELD, GpuUuid("GPU-x")),
                )
                for i, pod in enumerate("ab")
            )
        ),
        {
            "gpu_on_two_leases": "GPU GPU-x is recorded on the Leases gpu-n1-0, gpu-n1-1",
            "whole_gpu_shared": "GPU 0 of n1 is held whole by lab/a, and also by lab/b",
        },
        id="two slots stand for one GPU",
    ),
    pytest.param(
        seen(a_lease(a_share("gone"))),
        {"holder_gone": "Lease gpu-n1-0 gives a GPU to lab/gone, which does not exist"},
        id="a pod that is gone holds a GPU",
    ),
    pytest.param(
        replace(seen(a_lease(BY_CLAIM)), resource_claims=()),
        {"holder_gone": "Lease gpu-n1-0 gives a GPU to ResourceClaim lab/c, which does not exist"},
        id="a ResourceClaim that is gone holds a GPU",
    ),
    pytest.param(
        seen(a_lease(a_share("a")), pods=(a_pod("a", phase="Failed"),)),
        {"holder_gone": "Lease gpu-n1-0 gives a GPU to lab/a, which has finished"},
        id="a pod that has finished holds a GPU",
    ),
    pytest.param(
        seen(a_lease(a_share("a")), pods=(a_pod("a", node="n2"),)),
        {"holder_gone": "Lease gpu-n1-0 gives a GPU to lab/a, which runs on n2"},
        id="a pod of another node holds a GPU",
    ),
    pytest.param(
        seen(a_lease(a_share("a")), pods=(a_pod("a", devices="GPU-n1-0,GPU-n1-1"),)),
        {"pod_without_lease": "pod lab/a runs with GPU-n1-1, and no Lease says so"},
        id="one of the Leases of a bound pod is missing",
    ),
    pytest.param(
        seen(
            a_lease(a_share("a")),
            pods=(a_pod("a", devices="GPU-n1-0"),),
            users={GpuUuid("GPU-n1-1"): [PodUid("uid-a")]},
        ),
        {"gpu_used_without_share": "pod lab/a uses GPU 1 of n1, and no Lease gives it to this pod"},
        id="the kubelet gave another GPU",
    ),
    pytest.param(
        seen(
            a_lease(a_share("a", booking="b")),
            a_lease(a_share("b", 1, booking="b"), index=1),
            bookings=(a_booking(gpus=1),),
        ),
        {"booking_overused": "booking b is for 1 GPUs, and 2 are recorded as covered by it"},
        id="more GPUs are covered than were booked",
    ),
    pytest.param(
        seen(a_lease(a_share("a", booking="b")), bookings=(a_booking(end=NOON),)),
        {"covered_without_booking": "lab/a is recorded as covered by booking b, which does not run"},
        id="the booking has ended",
    ),
    pytest.param(
        replace(seen(), unreadable={"gpu-n1-0": "not JSON"}),
        {"lease_unreadable": "Lease gpu-n1-0 cannot be read: not JSON"},
        id="a Lease cannot be read",
    ),
]


@pytest.mark.parametrize(("observed", "named"), BAD)
def test_each_thing_that_breaks_an_invariant_is_named(observed: Observed, named: dict[str, str]) -> None:
    assert found(observed) == named


def test_there_is_a_case_for_each_invariant() -> None:
    tried = {name for case in BAD for name in case.values[1]}  # type: ignore[union-attr] # a dict, see above
    assert tried == {each.value for each in Invariant} == {each.value for each in TOLERATED}


def test_objects_are_read_as_the_api_server_lists_them() -> None:
    lease = objects.lease(write_lease(a_lease(a_share("a", mib=20000)), "carrel", NOON))
    broken = objects.lease({"metadata": {"name": "gpu-n1-1", "annotations": {"carrel.dev/shares": "{"}}, "spec": {}})
    other = objects.lease({"metadata": {"name": "carrel-controller"}, "spec": {}})
    body = {**node_status(N1, {}, NOON), "metadata": {"name": "n1"}}
    observed = observe([objects.gpu_node_status(body)], [], [lease, broken, other], [a_pod("a")], [], NOON)
    assert set(found(observed)) == {"memory_exceeded", "lease_unreadable"}


def test_what_is_over_in_a_moment_does_not_count() -> None:
    lasting, gone = LastingViolations(), Violation(Invariant.HOLDER_GONE, "gpu-n1-0 uid", "…")
    over = Violation(Invariant.MEMORY_EXCEEDED, "gpu-n1-0", "…")
    assert lasting.add([gone, over], NOON) == [over], "a GPU that is promised twice counts at once"
    assert lasting.add([gone], NOON + timedelta(minutes=2)) == []
    assert lasting.add([gone], NOON + timedelta(minutes=3)) == [gone]
    assert lasting.add([], NOON + timedelta(minutes=4)) == []
    assert lasting.add([gone], NOON + timedelta(minutes=5)) == [], "it was over in between"
