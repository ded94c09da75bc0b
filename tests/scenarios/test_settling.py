"""Nobody loses a GPU to a booking that was just made, and what was taken for a booking that is gone goes back."""

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from carrel.bookings.commands import BookingCommands
from carrel.bookings.inventory import ClusterInventory
from carrel.bookings.mirror import BookingMirror
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord, BookingRefusal, BookingRequest, Changes
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.cluster.state import ClusterState
from carrel.configuration.schema import BookingRules
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import read_lease
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Invalid, Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import EVENTS, LEASES
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from tests.kit.booking import FakeInventory
from tests.kit.gpus import A6000, N1, a_node
from tests.kit.lab import DAY, Lab, Replica, a_lab
from tests.kit.tiers import (
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    an_opportunistic_pod,
    an_owner,
    catch_up,
    end_deleted,
    hand_over_records,
    mark_unschedulable,
    pods_of,
    schedule,
    settle,
)

ADA = "ada@lab.example"
OF_ADA = {**OPPORTUNISTIC, "carrel.dev/user": ADA}
OF_EVE = {**OPPORTUNISTIC, "carrel.dev/user": "eve@lab.example"}
SETTLING_S = 10


@contextlib.asynccontextmanager
async def a_full_lab(gpus: int = 1) -> AsyncIterator[tuple[Lab, Replica, dict[str, str]]]:
    """All GPUs are Eve's, who has not booked; as many pods of Ada wait. With the uids of Eve's pods by name."""
    async with a_lab([a_node("n1", gpus=gpus)], has_booker=False) as lab, lab.replica() as replica:
        theirs = {}
        for number in range(gpus):
            pod = await an_opportunistic_pod(lab, replica, f"eve-{number}", annotations=OF_EVE)
            theirs[f"eve-{number}"] = pod["metadata"]["uid"]
        for number in range(gpus):
            await lab.pod(f"ada-{number}", limits=WHOLE, annotations=OF_ADA)
            await mark_unschedulable(lab, f"ada-{number}")
        yield lab, replica, theirs


async def still_have_gpus(lab: Lab, pods: dict[str, str]) -> bool:
    """Whether these pods run as they did, are not told to go, and hold all GPUs."""
    found, held = await pods_of(lab), await lab.held()
    holders = {uid for shares in held.values() for uid in shares}
    notices = [name for name in pods if "carrel.dev/leave-by" in found[name].metadata.annotations]
    are_here = all(found[name].metadata.uid == uid for name, uid in pods.items())
    are_ending = [name for name in pods if found[name].metadata.deletion_timestamp]
    return are_here and not are_ending and not notices and holders == set(pods.values())


async def kept_for(lab: Lab) -> list[str]:
    records = [read_lease(lease) for lease in (await lab.client.list(LEASES, Selection("carrel"))).items]
    return [record.kept_for.full_name for record in records if record is not None and record.kept_for is not None]


async def events_of(lab: Lab, pod: str) -> dict[str, str]:
    """Reason → message."""
    found = (await lab.client.list(EVENTS, Selection("lab"))).items
    return {each.reason: each.message for each in found if each.involved_object.name == pod}


async def a_new_booking(lab: Lab, gpus: int = 1, **spec: object) -> Json:
    return await lab.book(ADA, gpus=gpus, start=lab.clock.now, settlingSeconds=SETTLING_S, **spec)


# --- the settling time ------------------------------------------------------------------------------------------------


async def test_nobody_loses_a_gpu_to_a_booking_before_it_has_settled() -> None:
    async with a_full_lab() as (lab, replica, theirs):
        await a_new_booking(lab)
        controller = TierController(replica)
        for _ in range(SETTLING_S):
            await settle(lab, controller)
            assert await still_have_gpus(lab, theirs)
            lab.clock.now += timedelta(seconds=1)

        await settle(lab, controller)

        assert (await pods_of(lab))["ada-0"].spec.node_name == "n1"


async def test_a_booking_that_was_made_ahead_acts_at_its_start() -> None:
    async with a_full_lab() as (lab, replica, theirs):
        start = lab.clock.now + timedelta(seconds=SETTLING_S)
        await lab.book(ADA, start=start, settlingSeconds=SETTLING_S)
        controller = TierController(replica)
        lab.clock.now = start - timedelta(seconds=1)
        await settle(lab, controller)
        assert await still_have_gpus(lab, theirs)

        lab.clock.now = start
        await settle(lab, controller)

        assert (await pods_of(lab))["ada-0"].spec.node_name == "n1"


async def test_an_object_that_does_not_say_how_long_settles_for_ten_seconds() -> None:
    async with a_full_lab() as (lab, replica, theirs):
        made = await a_new_booking(lab)
        await lab.client.patch(BOOKINGS, made["metadata"]["name"], MergePatch({"spec": {"settlingSeconds": None}}))
        controller = TierController(replica)
        lab.clock.now += timedelta(seconds=9)
        await settle(lab, controller)
        assert await still_have_gpus(lab, theirs)

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)

        assert (await pods_of(lab))["ada-0"].spec.node_name == "n1"


async def test_a_booking_in_its_settling_time_takes_what_is_free() -> None:
    async with a_lab([a_node("n1", gpus=1)], has_booker=False) as lab, lab.replica() as replica:
        await a_new_booking(lab)
        await lab.pod("ada-0", limits=WHOLE, annotations=OF_ADA)

        await settle(lab, TierController(replica))

        assert (await pods_of(lab))["ada-0"].spec.node_name == "n1"
        assert (await lab.annotations("ada-0"))["carrel.dev/tier"] == "booked"


# --- a booking that is gone -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def a_notice() -> AsyncIterator[tuple[Lab, Replica, TierController, dict[str, str]]]:
    """Eve's pod was told that its GPU is needed for Ada's booking, and has ten minutes."""
    async with a_full_lab() as (lab, replica, theirs):
        await a_new_booking(lab)
        lab.clock.now += timedelta(seconds=SETTLING_S)
        controller = TierController(replica, grace_s=600)
        await settle(lab, controller)
        assert "carrel.dev/leave-by" in await lab.annotations("eve-0")
        yield lab, replica, controller, theirs


@pytest.mark.parametrize("how", ["cancelled", "made smaller", "given to somebody else"])
async def test_a_victim_stays_and_is_told_so_when_the_booking_needs_its_gpu_no_more(how: str) -> None:
    async with a_notice() as (lab, _, controller, theirs):
        if how == "cancelled":
            await lab.client.delete(BOOKINGS, "booking-ada")
        elif how == "made smaller":
            await lab.client.patch(BOOKINGS, "booking-ada", MergePatch({"spec": {"shareOf": 2}}))
        else:
            await lab.client.patch(BOOKINGS, "booking-ada", MergePatch({"spec": {"user": "zoe@lab.example"}}))
        await settle(lab, controller)

        assert await still_have_gpus(lab, theirs)
        assert await kept_for(lab) == []
        assert await hand_over_records(lab) == []
        assert controller.results == [HandOverResult.CALLED_OFF]
        words = "the GPU of this pod is not needed for a booked pod any more: the pod goes on, and keeps its GPU"
        assert (await events_of(lab, "eve-0"))["RevocationCalledOff"] == words
        lab.clock.now += timedelta(hours=1)
        await settle(lab, controller)
        assert await still_have_gpus(lab, theirs)


async def test_a_victim_stays_also_if_the_controller_that_told_it_is_gone() -> None:
    async with a_notice() as (lab, _, __, theirs):
        await lab.client.delete(BOOKINGS, "booking-ada")
        lab.clock.now += timedelta(hours=1)
        async with lab.replica() as successor:
            controller = TierController(successor, grace_s=600)

            await settle(lab, controller)

            assert await still_have_gpus(lab, theirs)
            assert await kept_for(lab) == []
            assert "RevocationCalledOff" in await events_of(lab, "eve-0")


async def test_no_pod_is_ended_by_an_old_cache_of_bookings() -> None:
    """The booking is cancelled in the moment in which the victim's time is up: no watch has shown it yet."""
    async with a_notice() as (lab, _, controller, theirs):
        lab.clock.now += timedelta(minutes=10)
        (record,) = await hand_over_records(lab)
        await lab.client.delete(BOOKINGS, "booking-ada")

        await controller.parts.hand_overs.advance(record)

        assert not (await pods_of(lab))["eve-0"].metadata.deletion_timestamp
        await settle(lab, controller)
        assert await still_have_gpus(lab, theirs)


async def test_a_victim_whose_gpu_is_still_needed_is_ended_in_time() -> None:
    async with a_notice() as (lab, _, controller, __):
        await lab.client.patch(BOOKINGS, "booking-ada", MergePatch({"spec": {"gpus": 3}}))
        lab.clock.now += timedelta(minutes=10)

        await settle(lab, controller)

        assert (await pods_of(lab))["ada-0"].spec.node_name == "n1"
        assert "carrel.dev/handed-over" in await lab.annotations("eve-0")


async def test_the_next_pod_of_a_controller_gets_a_gpu_if_the_booking_is_gone_before_it_is_made() -> None:
    """The pod is ending already; the record by which the webhook takes the GPU off the next one goes."""
    async with a_lab([a_node("n1", gpus=1)], has_booker=False) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "eve-0", annotations=OF_EVE, owner=await an_owner(lab))
        await lab.book(ADA)
        await lab.pod("ada-0", limits=WHOLE, annotations=OF_ADA)
        await mark_unschedulable(lab, "ada-0")
        controller = TierController(replica)
        await catch_up(lab, replica)
        await controller.round()
        assert (await pods_of(lab))["eve-0"].metadata.deletion_timestamp
        assert len(await hand_over_records(lab)) == 1

        await lab.client.delete(BOOKINGS, "booking-ada")
        await catch_up(lab, replica)
        await controller.round()

        assert await hand_over_records(lab) == []
        assert controller.results == [HandOverResult.CALLED_OFF]


async def test_a_victim_that_is_still_needed_when_another_one_stays_keeps_its_time() -> None:
    """A booked pod needs two GPUs. One of its victims is booked meanwhile, and a third pod has to go in its place."""
    async with a_lab([a_node("n1", gpus=3)], has_booker=False) as lab, lab.replica() as replica:
        for name in ("a", "b", "c"):
            told = {**OPPORTUNISTIC, "carrel.dev/user": f"{name}@lab.example"}
            await an_opportunistic_pod(lab, replica, name, annotations=told)
        await lab.book(ADA, gpus=2)
        await lab.pod("ada-0", limits={"nvidia.com/gpu": "2"}, annotations=OF_ADA)
        await mark_unschedulable(lab, "ada-0")
        controller = TierController(replica, grace_s=600)
        await settle(lab, controller)
        first, second = [name for name in "abc" if "carrel.dev/leave-by" in await lab.annotations(name)]
        until = (await lab.annotations(second))["carrel.dev/leave-by"]
        lab.clock.now += timedelta(minutes=1)

        await lab.book(f"{first}@lab.example")
        await settle(lab, controller)

        assert "carrel.dev/leave-by" not in await lab.annotations(first)
        assert (await lab.annotations(second))["carrel.dev/leave-by"] == until
        assert controller.results == [HandOverResult.CALLED_OFF]
        lab.clock.now += timedelta(minutes=10)
        await settle(lab, controller)
        assert (await pods_of(lab))["ada-0"].spec.node_name == "n1"


# --- with the booking service ----------------------------------------------------------------------------------------


class SeenInventory(FakeInventory):
    """Four GPUs, and what pods of the cluster use of bookings."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__({A6000: 4})
        self.is_used = ClusterInventory(state).is_used  # type: ignore[method-assign] # of the cluster


@dataclass
class BookingPerson:
    """The booking service, and its mirror on the lab's cluster."""

    commands: BookingCommands
    mirror: BookingMirror

    async def book(self, gpus: int = 1, **wish: object) -> BookingRecord | BookingRefusal:
        request = BookingRequest(A6000, DAY, gpus=gpus, **wish)  # type: ignore[arg-type] # passed through
        answer = await self.commands.create(request, Person(ADA))
        return await self._mirrored(answer)

    async def change(self, id: str, **wish: object) -> BookingRecord | BookingRefusal:
        changes = Changes(**wish)  # type: ignore[arg-type] # passed through
        return await self._mirrored(await self.commands.change(id, changes, Person(ADA)))

    async def cancel(self, id: str) -> BookingRecord | BookingRefusal:
        return await self._mirrored(await self.commands.cancel(id, Person(ADA)))

    async def _mirrored(self, answer: BookingRecord | BookingRefusal) -> BookingRecord | BookingRefusal:
        if isinstance(answer, BookingRecord):
            await self.mirror.write(answer.booking.id)
        return answer


@contextlib.asynccontextmanager
async def a_booking_person(lab: Lab, state: ClusterState, folder: Path) -> AsyncIterator[BookingPerson]:
    database = Database(f"sqlite:///{folder}/carrel.db")
    await database.migrate()
    async with contextlib.aclosing(database):
        rules = BookingRules(settling_time=timedelta(seconds=SETTLING_S))
        queries = BookingQueries(SqlBookings(database), SeenInventory(state), rules, UTC, lab.clock)
        yield BookingPerson(BookingCommands(queries), BookingMirror(Client(lab.api), queries))


def broken(answer: BookingRecord | BookingRefusal) -> list[str]:
    return [problem.rule for problem in answer.problems] if isinstance(answer, BookingRefusal) else []


async def test_an_enlarged_booking_settles_again_and_so_does_one_whose_start_is_moved(tmp_path: Path) -> None:
    async with a_full_lab(gpus=2) as (lab, replica, theirs), a_booking_person(lab, replica, tmp_path) as ada:
        controller = TierController(replica)
        booked = await ada.book(start=lab.clock.now + DAY)
        assert isinstance(booked, BookingRecord)
        lab.clock.now += timedelta(hours=1)
        await ada.change(booked.booking.id, start=lab.clock.now)
        await settle(lab, controller)
        assert await still_have_gpus(lab, theirs), "it is planned for now since a moment ago"
        lab.clock.now += timedelta(seconds=SETTLING_S)
        await settle(lab, controller)
        assert (await pods_of(lab))["ada-0"].spec.node_name == "n1"

        await ada.change(booked.booking.id, gpus=2)
        await settle(lab, controller)
        assert not (await pods_of(lab))["ada-1"].spec.node_name
        lab.clock.now += timedelta(seconds=SETTLING_S)
        await settle(lab, controller)

        assert (await pods_of(lab))["ada-1"].spec.node_name == "n1"


async def test_what_is_taken_back_at_once_costs_no_cooldown_unless_a_pod_has_used_it(tmp_path: Path) -> None:
    async with a_full_lab() as (lab, replica, _), a_booking_person(lab, replica, tmp_path) as ada:
        mistyped = await ada.book(gpus=4)
        assert isinstance(mistyped, BookingRecord)
        await ada.cancel(mistyped.booking.id)

        again = await ada.book()
        assert isinstance(again, BookingRecord)
        lab.clock.now += timedelta(seconds=SETTLING_S)
        await ada.cancel(again.booking.id)

        assert broken(await ada.book()) == ["cooldown"]


async def test_a_booking_that_covered_a_pod_counts_however_soon_it_is_cancelled(tmp_path: Path) -> None:
    async with a_lab([a_node("n1", gpus=1)], has_booker=False) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "ada-0", annotations=OF_ADA)
        async with a_booking_person(lab, replica, tmp_path) as ada:
            booked = await ada.book()
            assert isinstance(booked, BookingRecord)
            await catch_up(lab, replica)
            cancelled = await ada.cancel(booked.booking.id)

            assert isinstance(cancelled, BookingRecord)
            assert cancelled.booking.cancelled_at == booked.booking.start, "in the same second"
            assert broken(await ada.book()) == ["cooldown"]


@pytest.mark.parametrize("seed", range(8))
async def test_book_and_cancel_in_a_loop_gains_nothing(seed: int, tmp_path: Path) -> None:
    """Ada books and cancels, enlarges and shortens, at random instants, and never waits until a booking has settled.
    Controllers come and go meanwhile, and caches are sometimes old."""
    chance = random.Random(seed)
    made = rounds = 0
    async with a_full_lab(gpus=4) as (lab, state, theirs), a_booking_person(lab, state, tmp_path) as ada:
        active: BookingRecord | None = None
        left_s = 0.0
        async with contextlib.AsyncExitStack() as running:
            controller = TierController(await running.enter_async_context(lab.replica()))
            for _ in range(40):
                act = chance.choice(["book", "wait", "round", "round", "cancel", "enlarge", "crash"])
                if act == "book" and active is None:
                    answer = await ada.book(gpus=chance.randint(1, 4))
                    assert isinstance(answer, BookingRecord), "nothing used the last one, so no cooldown follows"
                    active, left_s, made = answer, SETTLING_S - 1.0, made + 1
                elif act == "enlarge" and active is not None:
                    await ada.change(active.booking.id, gpus=4)
                elif act == "cancel" and active is not None:
                    await ada.cancel(active.booking.id)
                    active = None
                elif act == "crash":
                    await running.aclose()
                    controller = TierController(await running.enter_async_context(lab.replica()))
                elif act == "round":
                    rounds += 1
                    if chance.random() < 0.7:
                        await catch_up(lab, controller.replica)
                    await controller.round()
                    await catch_up(lab, controller.replica)
                    await schedule(lab, controller.replica, (N1,))
                    await end_deleted(lab)
                elif act == "wait":
                    step_s = chance.uniform(0, left_s if active is not None else 20.0)
                    lab.clock.now += timedelta(seconds=step_s)
                    left_s -= step_s
                assert await still_have_gpus(lab, theirs)
            if active is not None:
                await ada.cancel(active.booking.id)
            await settle(lab, controller)
            assert await still_have_gpus(lab, theirs)
            assert await kept_for(lab) == []
    assert made and rounds


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"settlingSeconds": 10**12}, id="it settles for ever"),
        pytest.param({"enlarged": "yesterday"}, id="an instant that cannot be read"),
    ],
)
async def test_an_object_with_odd_times_entitles_to_nothing_and_harms_nobody(odd: dict[str, Any]) -> None:
    """The definition of the kind refuses a number that is too large; that of an earlier version does not."""
    async with a_full_lab() as (lab, replica, theirs):
        with contextlib.suppress(Invalid):
            await lab.book(ADA, name="odd", **odd)
        lab.clock.now += timedelta(hours=1)

        await settle(lab, TierController(replica))

        assert await still_have_gpus(lab, theirs)
        assert replica.covered_pods.bookings() == ()
