"""MIG slices are booked, held, taken back and shown like GPUs; dividing a GPU anew takes none from anybody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from carrel.bookings.capacity import capacity_of
from carrel.dialects import gpuclaim
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.ledger.tiers import Tier
from tests.kit.eventually import eventually
from tests.kit.gpus import A100, N1, a_gpu, divided_gpu
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    TierController,
    an_unschedulable_booked_pod,
    mark_unschedulable,
    pods_of,
    settle,
)

SLICE = {"nvidia.com/mig-1g.10gb": "1"}
MODEL = f"{A100}-MIG-1g.10gb"
WHOLE_A100 = a_gpu("n1", 0, 81920, model=A100)
CLASSROOM = Node(N1, divided_gpu())
STUDENTS = tuple(f"student-{number}" for number in range(7))


def of(student: str, tier: str = "opportunistic") -> dict[str, str]:
    return {"carrel.dev/user": f"{student}@lab.example", "carrel.dev/tier": tier}


async def divide(lab: Lab, replica: Replica, gpus: Sequence[Gpu]) -> None:
    """As the agent reports it after the admin has divided the GPU in another way."""
    body = gpuclaim.node_status(Node(N1, tuple(gpus)), {}, lab.clock.now)
    await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch({"status": body["status"]}), subresource="status")
    uuids = {gpu.uuid for gpu in gpus}
    await eventually(lambda: {entry.gpu.uuid for entry in replica.ledger.entries(N1)} == uuids)


def unusable(replica: Replica) -> set[str]:
    return {entry.gpu.unusable for entry in replica.ledger.entries(N1)}


async def test_seven_students_of_a_course_have_a_slice_of_one_gpu_each() -> None:
    async with a_lab([CLASSROOM]) as lab, lab.replica() as replica:
        for student in STUDENTS:
            await lab.book(f"{student}@lab.example", model=MODEL)
        pods = [await lab.pod(student, limits=SLICE, annotations=of(student)) for student in STUDENTS]
        for pod in pods:
            assert await replica.bind(pod, "n1") is None

        uids = [pod["metadata"]["uid"] for pod in pods]
        assert await lab.held() == {f"gpu-n1-{1000 + at}": {uid: None} for at, uid in enumerate(uids)}
        assert {replica.covered_pods.tier(await replica.sees(pod)) for pod in pods} == {Tier.BOOKED}
        told = [(await lab.annotations(student))["carrel.dev/devices"] for student in STUDENTS]
        assert told == [f"MIG-n1-0-{number}" for number in range(7)]
        assert await lab.violations() == []

        late = await lab.pod("late", limits=SLICE, annotations=of("late"))
        refused = await replica.bind(late, "n1")
        assert isinstance(refused, Refusal)
        assert "none of its 7 GPUs would do" in refused.reason


async def test_who_has_booked_a_slice_takes_one_back_and_no_other() -> None:
    async with a_lab([CLASSROOM]) as lab, lab.replica() as replica:
        await lab.book("ada@lab.example", model=MODEL)
        for student in STUDENTS:
            pod = await lab.pod(
                student, limits=SLICE, annotations={**of(student), "terminate-at": "1900-01-01T08:00:00Z"}
            )
            assert await replica.bind(pod, "n1") is None
        await lab.pod("ada", limits=SLICE, annotations=of("ada", "booked"))
        await mark_unschedulable(lab, "ada")

        await settle(lab, TierController(replica))

        pods = await pods_of(lab)
        victims = [name for name, pod in pods.items() if "carrel.dev/handed-over" in pod.metadata.annotations]
        assert len(victims) == 1
        assert pods["ada"].spec.node_name == "n1"
        successor = pods[victims[0]].spec.containers[0].resources
        assert "nvidia.com/mig-1g.10gb" not in {**successor.limits, **successor.requests}


async def test_a_booked_gpu_takes_no_slice_back() -> None:
    async with a_lab([CLASSROOM]) as lab, lab.replica() as replica:
        pod = await lab.pod("student", limits=SLICE, annotations=of("student"))
        assert await replica.bind(pod, "n1") is None
        await an_unschedulable_booked_pod(lab, "urgent")

        await settle(lab, TierController(replica))

        assert (await pods_of(lab))["student"].spec.node_name == "n1"


async def held_slice(lab: Lab, replica: Replica) -> Json:
    pod = await lab.pod("student", limits=SLICE, annotations=of("student"))
    assert await replica.bind(pod, "n1") is None
    return pod


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(divided_gpu(profiles=("3g.40gb", "2g.20gb")), id="into other slices"),
        pytest.param((WHOLE_A100,), id="not at all any more"),
    ],
)
async def test_a_gpu_that_is_divided_anew_while_a_slice_is_held_takes_nobody_until_that_pod_has_ended(
    now: tuple[Gpu, ...],
) -> None:
    now = tuple(replace(gpu, uuid=GpuUuid(f"{gpu.uuid}-new")) for gpu in now)  # other slices have other UUIDs
    async with a_lab([CLASSROOM]) as lab, lab.replica() as replica, lab.replica() as other:
        pod = await held_slice(lab, replica)
        await divide(lab, replica, now)
        await divide(lab, other, now)
        for each in (replica, other):
            whys = unusable(each)
            assert all("lab/student" in why or "still records another GPU" in why for why in whys), whys
        assert replica.ledger.shares_of(PodUid(pod["metadata"]["uid"])), "nothing is taken from who holds it"

        assert await replica.lease_writer.remove_pod(N1, 1000, PodUid(pod["metadata"]["uid"]))
        await eventually(lambda: unusable(replica) == {""} and unusable(other) == {""})


async def test_a_gpu_that_was_whole_takes_nobody_as_slices_until_its_holder_has_ended() -> None:
    async with a_lab([Node(N1, (WHOLE_A100,))]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits={"nvidia.com/gpu": "1"}, annotations=of("train"))
        assert await replica.bind(pod, "n1") is None
        await divide(lab, replica, divided_gpu())

        why = "GPU 0 was divided anew while lab/train holds GPU 0, which is gone; it takes new pods when that one has"
        assert unusable(replica) == {f"{why} ended"}
        assert await replica.lease_writer.remove_pod(N1, 0, PodUid(pod["metadata"]["uid"]))
        await eventually(lambda: unusable(replica) == {""})


async def test_slices_that_nobody_holds_come_and_go() -> None:
    async with a_lab([Node(N1, (WHOLE_A100,))]) as lab, lab.replica() as replica:
        await divide(lab, replica, divided_gpu())
        assert capacity_of([replica.ledger.node(N1)])[MODEL].gpus == 7  # type: ignore[list-item] # it is there
        await held_slice(lab, replica)
        await divide(lab, replica, divided_gpu(profiles=("1g.10gb", "3g.40gb")))
        assert unusable(replica) == {""}, "the slice that is held is still there"
        assert set(capacity_of([replica.ledger.node(N1)])) == {MODEL, f"{A100}-MIG-3g.40gb"}  # type: ignore[list-item] # it is there


async def test_slices_of_a_gpu_that_falls_ill_are_kept_by_who_holds_them_and_given_to_nobody() -> None:
    async with a_lab([CLASSROOM]) as lab, lab.replica() as replica:
        await held_slice(lab, replica)
        ill = tuple(replace(gpu, unusable="XID 79") for gpu in divided_gpu())
        body = gpuclaim.node_status(Node(N1, ill), {}, lab.clock.now)["status"]
        await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch({"status": body}), subresource="status")
        await eventually(lambda: unusable(replica) == {"XID 79"})

        late = await lab.pod("late", limits=SLICE, annotations=of("late"))
        assert isinstance(await replica.bind(late, "n1"), Refusal)
        assert [list(holders.values()) for holders in (await lab.held()).values()] == [[None]]


async def test_gpu_hours_of_a_slice_are_its_part_of_the_memory_of_its_gpu() -> None:
    async with a_lab([CLASSROOM]) as lab, lab.replica(is_shown=True) as replica:
        await held_slice(lab, replica)

        looks = {look.gpu: look.holdings for look in replica.view.looks.take(with_usage=False)}
        assert [(each.part, each.of) for each in looks[CLASSROOM.gpus[0].uuid]] == [(1.0, 0.125)]


async def test_a_claim_for_slices_of_a_model_is_served() -> None:
    async with a_lab([CLASSROOM]) as lab, lab.replica() as replica:
        pod = await lab.pod(
            "by-model", annotations={**of("ada"), "carrel.dev/gpu-count": "2", "carrel.dev/gpu-model": MODEL}
        )
        seen = await replica.sees(pod)
        placed = replica.scheduler.filter(seen, (N1,), chooses=False)
        assert not isinstance(placed, Refusal | Placement)
        assert list(placed.fitting) == ["n1"]
        assert await replica.bind(pod, "n1") is None
        assert set(await lab.held()) == {"gpu-n1-1000", "gpu-n1-1001"}
