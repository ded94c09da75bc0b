"""Where bookings are made elsewhere, the controller asks about people with GPU pods, and writes what it is told."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS, BookingObject
from carrel.dialects.carrel import USER
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.tiers import Tier
from carrel.lifecycle.booking_enquiries import BookingEnquiries
from kubernetes_in_memory.faults import FaultPlan
from tests.kit.bookings_elsewhere import A100, BookingsElsewhere
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import a_node
from tests.kit.lab import NOON, Lab, Replica, a_lab

ADA, BOB = "ada@lab.example", "bob@lab.example"
WHOLE = {"nvidia.com/gpu": "1"}
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with a_lab([a_node("n1", 4)], has_booker=False) as lab:
        yield lab


@pytest.fixture
async def replica(lab: Lab) -> AsyncIterator[Replica]:
    async with lab.replica() as replica:
        yield replica


async def a_pod(lab: Lab, replica: Replica, person: str, name: str = "train", **spec: Any) -> None:
    annotations = {USER: person, "carrel.dev/tier": "opportunistic"} if person else {}
    await replica.sees(await lab.pod(name, annotations=annotations, **{"limits": WHOLE, **spec}))


async def objects(lab: Lab) -> dict[str, BookingObject]:
    """By person."""
    return {each.spec.user: each for each in (await lab.client.list(BOOKINGS)).items}


async def later(lab: Lab, replica: Replica, by: timedelta = MINUTE) -> None:
    """Once the replica has seen what was written."""
    wanted = {each.metadata.resource_version for each in (await objects(lab)).values()}
    await eventually(lambda: {each.metadata.resource_version for each in replica.bookings.store} == wanted)
    lab.clock.now += by


async def test_a_booking_elsewhere_covers_a_pod_here(lab: Lab, replica: Replica) -> None:
    service = BookingsElsewhere()
    service.book(ADA, NOON + HOUR, model="")
    await a_pod(lab, replica, ADA)

    await BookingEnquiries(replica, service).round()

    found = (await objects(lab))[ADA]
    assert (found.spec.gpus, found.spec.end, found.spec.namespace) == (1, "2026-11-16T13:00:00Z", "")
    assert found.metadata.labels == {"carrel.dev/source": "enquiry"}
    pod = replica.pods.store.get("train", "lab")
    assert pod is not None
    await eventually(lambda: replica.covered_pods.tier(pod) is Tier.BOOKED)


async def test_a_booking_elsewhere_covers_the_persons_pods_up_to_the_number_that_it_stands_for(
    lab: Lab, replica: Replica
) -> None:
    service = BookingsElsewhere()
    service.book(ADA, NOON + HOUR, model="", gpus=3)
    enquiries = BookingEnquiries(replica, service)
    await a_pod(lab, replica, ADA, "one")
    await a_pod(lab, replica, ADA, "two", limits={"nvidia.com/gpu": "2"})

    def booked() -> set[str]:
        pods = replica.pods.store
        return {pod.metadata.name for pod in pods if replica.covered_pods.tier(pod) is Tier.BOOKED}

    await enquiries.round()
    await eventually(lambda: booked() == {"one", "two"})
    lab.clock.now += MINUTE
    await a_pod(lab, replica, ADA, "too-many", limits={"nvidia.com/gpu": "4"})
    assert booked() == {"one", "two"}
    words = {replica.words.covered(each) for each in replica.covered_pods.bookings()}
    assert words == {"covered by your booking of up to 3 GPUs until Mon 16 Nov 13:00 UTC"}

    await later(lab, replica)
    service.book(ADA, NOON + HOUR, model="", gpus=1)
    await enquiries.round()
    await eventually(lambda: booked() == {"one"})  # a pod with two GPUs does not fit any more


async def test_only_people_whose_pods_concern_gpus_are_asked_about_at_once_and_every_minute(
    lab: Lab, replica: Replica
) -> None:
    service = BookingsElsewhere()
    enquiries = BookingEnquiries(replica, service)
    await a_pod(lab, replica, ADA)
    await a_pod(lab, replica, ADA, "second")
    await a_pod(lab, replica, "cpu@lab.example", "no-gpu", limits={})
    await a_pod(lab, replica, "", "nobodys")

    await enquiries.round()
    await enquiries.round()
    assert service.asked == [(ADA, "lab")]
    lab.clock.now += 30 * MINUTE / 60
    await a_pod(lab, replica, BOB, "bobs")
    await enquiries.round()
    assert service.asked == [(ADA, "lab"), (BOB, "lab")]
    lab.clock.now += 30 * MINUTE / 60
    await enquiries.round()
    assert service.asked == [(ADA, "lab"), (BOB, "lab"), (ADA, "lab")]


async def test_it_follows_an_extension_and_a_cancellation(lab: Lab, replica: Replica) -> None:
    service = BookingsElsewhere()
    enquiries = BookingEnquiries(replica, service)
    await a_pod(lab, replica, ADA)
    service.book(ADA, NOON + HOUR)
    await enquiries.round()
    before = (await objects(lab))[ADA]

    await later(lab, replica)
    service.book(ADA, NOON + 2 * HOUR)
    await enquiries.round()
    extended = (await objects(lab))[ADA]
    assert (extended.metadata.uid, extended.spec.end) == (before.metadata.uid, "2026-11-16T14:00:00Z")
    assert extended.spec.start == before.spec.start

    await later(lab, replica)
    service.book(ADA, None)
    await enquiries.round()
    assert await objects(lab) == {}


async def test_another_model_is_another_booking(lab: Lab, replica: Replica) -> None:
    service = BookingsElsewhere()
    enquiries = BookingEnquiries(replica, service)
    await a_pod(lab, replica, ADA)
    service.book(ADA, NOON + HOUR)
    await enquiries.round()
    await later(lab, replica)
    service.book(ADA, NOON + HOUR, model="Tesla-T4")
    await enquiries.round()
    (only,) = (await lab.client.list(BOOKINGS)).items
    assert only.spec.model == "Tesla-T4"


async def test_silence_keeps_the_last_answer_until_its_end_also_after_a_restart(lab: Lab, replica: Replica) -> None:
    service = BookingsElsewhere()
    enquiries = BookingEnquiries(replica, service)
    await a_pod(lab, replica, ADA)
    service.book(ADA, NOON + HOUR)
    await enquiries.round()
    service.silent.add(ADA)
    for restarted in (enquiries, BookingEnquiries(replica, service)):
        await later(lab, replica)
        await restarted.round()
        assert ADA in await objects(lab)
    for minutes, is_there in ((60, True), (69, True), (70, False), (71, False)):
        lab.clock.now = NOON + minutes * MINUTE
        await enquiries.round()
        assert (ADA in await objects(lab)) is is_there, minutes
        await later(lab, replica, timedelta())


@pytest.mark.parametrize(
    ("before_the_end", "is_there"),
    [
        pytest.param(2 * MINUTE, False, id="before the end: it was cancelled"),
        pytest.param(MINUTE / 6, True, id="a moment before: clocks differ"),
        pytest.param(-MINUTE, True, id="after the end: a regular end stays visible"),
        pytest.param(-10 * MINUTE, False, id="ten minutes after the end"),
    ],
)
async def test_a_clear_no(lab: Lab, replica: Replica, before_the_end: timedelta, is_there: bool) -> None:
    service = BookingsElsewhere()
    enquiries = BookingEnquiries(replica, service)
    await a_pod(lab, replica, ADA)
    service.book(ADA, NOON + HOUR)
    await enquiries.round()
    await later(lab, replica, HOUR - before_the_end)

    service.book(ADA, None)
    await enquiries.round()

    assert (ADA in await objects(lab)) is is_there


async def test_nobodys_failure_stops_the_others(lab: Lab, replica: Replica) -> None:
    service = BookingsElsewhere()
    people = [f"p{number}@lab.example" for number in range(30)]
    for number, person in enumerate(people):
        await a_pod(lab, replica, person, f"pod-{number}")
        service.book(person, NOON + HOUR)
    service.silent.add(people[3])
    service.broken.add(people[4])
    enquiries = BookingEnquiries(replica, service)

    await enquiries.round()

    assert set(await objects(lab)) == {*people} - {people[3], people[4]}
    assert enquiries.failures == 2


async def test_a_booking_for_one_namespace_covers_no_pods_in_another(lab: Lab, replica: Replica) -> None:
    service = BookingsElsewhere()
    service.book(ADA, NOON + HOUR, namespace="lab")
    await a_pod(lab, replica, ADA)
    body = await lab.pod("other", limits=WHOLE, annotations={USER: ADA})
    metadata = {"name": "other", "namespace": "carrel", "annotations": body["metadata"]["annotations"]}
    await replica.sees(await lab.client.create(PODS, {**body, "metadata": metadata}, "carrel"))

    await BookingEnquiries(replica, service).round()

    assert (await objects(lab))[ADA].spec.namespace == "lab"


async def test_objects_of_carrels_own_booking_service_are_left_alone(lab: Lab, replica: Replica) -> None:
    service = BookingsElsewhere()
    service.book(ADA, None)
    await a_pod(lab, replica, ADA)
    await lab.book(ADA, 2)
    await later(lab, replica)

    await BookingEnquiries(replica, service).round()

    assert (await objects(lab))[ADA].spec.gpus == 2


@pytest.mark.parametrize("seed", range(5))
async def test_under_faults_all_is_written_in_the_end(lab: Lab, seed: int) -> None:
    service = BookingsElsewhere()
    plan = FaultPlan(seed=seed, refuse=0.3, lose_answer=0.3)
    async with lab.replica(Faulty(lab.api, plan)) as replica:
        for number in range(5):
            await a_pod(lab, replica, f"p{number}@lab.example", f"pod-{number}")
            service.book(f"p{number}@lab.example", NOON + 5 * HOUR)
        enquiries = BookingEnquiries(replica, service)
        for _ in range(8):
            await enquiries.round()
            await later(lab, replica)
        assert {each.spec.model for each in (await objects(lab)).values()} == {A100}
        assert len(await objects(lab)) == 5
