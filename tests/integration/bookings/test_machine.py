"""Booking, changing, cancelling and waiting in any order: the API agrees with a model that looks at every hour.

Everything happens at whole hours, so the model can look at each of them. It shares no code with the rules.
"""

import asyncio
import tempfile
from dataclasses import dataclass, replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from carrel.bookings.store.database import Database
from carrel.configuration.schema import BookingRules
from tests.kit.booking import NOW, Caller, opened_on

HOUR = timedelta(hours=1)
CAPACITY = {"A6000": 1, "T4": 2}
PEOPLE = ("ada@lab.org", "bob@lab.org", "eve@lab.org")
GROUP, MANAGER = "vision", "ada@lab.org"
MOST_OF_A_GROUP = 2
"""GPUs of one booking."""


# --- the model: forty lines ------------------------------------------------------------------------------------------


@dataclass
class Slot:
    """Hours since the test's now; the end is the real one: the planned, or when it was cancelled.

    `who` is a person or the group. One that was cancelled in the hour in which it began has no hour, but a cooldown.
    """

    who: str
    model: str
    start: int
    end: int
    gpus: int
    made: int

    def holds(self, hour: int) -> bool:
        return self.start <= hour < self.end


def is_full(slots: list[Slot], wish: Slot, capacity: int) -> bool:
    same = [slot for slot in slots if slot.model == wish.model]
    return any(
        sum(slot.gpus for slot in same if slot.holds(hour)) + wish.gpus > capacity
        for hour in range(wish.start, wish.end)
    )


def near(own: list[Slot], wish: Slot) -> bool:
    return any(wish.start < slot.end + 336 and slot.start < wish.end + 336 for slot in own)


def wrong(slots: list[Slot], wish: Slot, now: int, capacity: int, old: Slot | None = None) -> set[str]:
    others = [slot for slot in slots if slot is not old]
    own = [slot for slot in others if slot.who == wish.who]
    if old is not None and old.end <= now:
        return {"over"}
    is_smaller = old is not None and old.start <= wish.start and wish.end <= old.end
    found = {
        "end-after-start": wish.end <= wish.start,
        "min-duration": 0 < wish.end - wish.start < 24,
        "group-max-gpus": wish.who == GROUP
        and wish.gpus > MOST_OF_A_GROUP
        and not (is_smaller and old is not None and wish.gpus <= old.gpus),
        "max-duration": wish.end - wish.start > 336 and not is_smaller,
        "begun": old is not None and old.start <= now and wish.start != old.start,
        "not-in-the-past": (wish.start < now and (old is None or (now < old.start and wish.start != old.start)))
        or (old is not None and wish.start < wish.end <= now),
        "no-active-overlap": old is None and any(slot.holds(now) for slot in own),
        "future-limit": old is None and any(slot.start > now for slot in own),
        "cooldown": near(own, wish) and not is_smaller,
        "capacity": is_full(others, wish, capacity) and not (is_smaller and old is not None and wish.gpus <= old.gpus),
    }
    return {code for code, is_so in found.items() if is_so}


# --- the machine -----------------------------------------------------------------------------------------------------


class BookingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(f"sqlite:///{self.folder.name}/carrel.db")
        self.opened = opened_on(self.database, BookingRules(group_max_gpus=MOST_OF_A_GROUP))
        self.opened.inventory.gpus.clear()
        self.opened.inventory.gpus.update(CAPACITY)
        self.now = 0
        self.slots: dict[str, Slot] = {}
        self.callers: dict[str, Caller] = {}

    @initialize()
    def open(self) -> None:
        self.loop.run(self.database.migrate())
        self.callers = {who: self.loop.run(self.opened.caller(who)) for who in PEOPLE}
        self.callers[GROUP] = self.callers[MANAGER]
        self.loop.run(self.opened.manage(GROUP, MANAGER))

    def teardown(self) -> None:
        self.loop.run(self.database.aclose())
        self.loop.close()
        self.folder.cleanup()

    @rule(
        who=st.sampled_from((*PEOPLE, GROUP)),
        model=st.sampled_from(sorted(CAPACITY)),
        start=st.integers(-2, 400) | st.sampled_from((0, 24, 336)),
        length=st.integers(-1, 340) | st.sampled_from((24, 336)),
        gpus=st.integers(1, 3),
    )
    def book(self, who: str, model: str, start: int, length: int, gpus: int) -> None:
        wish = Slot(who, model, self.now + start, self.now + start + length, gpus, self.now)
        body = {"model": model, "start": _at(wish.start), "end": _at(wish.end), "gpus": gpus}
        body |= {"group": GROUP} if who == GROUP else {}
        expected = wrong(list(self.slots.values()), wish, self.now, CAPACITY[model])

        seen = self.loop.run(self.callers[who].post("/api/v1/bookings/preview", body)).json
        answer = self.loop.run(self.callers[who].post("/api/v1/bookings", body))

        assert {problem["code"] for problem in seen["problems"]} == expected
        if expected:
            assert (answer.status, set(answer.codes)) == (422, expected)
            self.check_earliest(wish, answer.json["earliest_start"])
        else:
            assert answer.status == 201
            self.slots[answer.json["id"]] = wish

    def check_earliest(self, wish: Slot, said: str | None) -> None:
        """The suggested start would be accepted, unless a rule is broken that no other start helps."""
        wish = replace(wish, gpus=min(wish.gpus, MOST_OF_A_GROUP)) if wish.who == GROUP else wish
        if said is None:
            assert wish.gpus > CAPACITY[wish.model]
            return
        start = next(hour for hour in range(self.now, self.now + 5000) if _at(hour) == said)
        length = max(24, min(336, wish.end - wish.start))
        better = replace(wish, start=start, end=start + length)
        left = wrong(list(self.slots.values()), better, self.now, CAPACITY[wish.model])
        assert left <= {"no-active-overlap", "future-limit"}

    @rule(
        which=st.integers(0, 20),
        start=st.integers(-30, 30) | st.just(0),
        longer=st.integers(-200, 200),
        gpus=st.integers(1, 2),
    )
    def change(self, which: int, start: int, longer: int, gpus: int) -> None:
        if not self.slots:
            return
        id = list(self.slots)[which % len(self.slots)]  # by order: ids differ from run to run
        old = self.slots[id]
        new = replace(old, start=old.start + start, end=old.end + longer, gpus=gpus)
        body = {"start": _at(new.start), "end": _at(new.end), "gpus": gpus}
        expected = wrong(list(self.slots.values()), new, self.now, CAPACITY[old.model], old)

        answer = self.loop.run(self.callers[old.who].patch(f"/api/v1/bookings/{id}", body))

        if expected:
            assert (answer.status, set(answer.codes)) == (422, expected)
        else:
            assert answer.status == 200
            self.slots[id] = new

    @rule(which=st.integers(0, 20))
    def cancel(self, which: int) -> None:
        if not self.slots:
            return
        id = list(self.slots)[which % len(self.slots)]  # by order: ids differ from run to run
        slot = self.slots[id]

        answer = self.loop.run(self.callers[slot.who].post(f"/api/v1/bookings/{id}/cancel"))

        if slot.end > self.now:
            assert answer.json["state"] == "cancelled"
            if slot.start > self.now or slot.made == self.now:
                del self.slots[id]  # it had not begun, or was only just made: it does not count
            else:
                slot.end = self.now
        else:
            assert answer.status in (200, 422)  # cancelled before, or over

    @rule(hours=st.integers(1, 48) | st.sampled_from((336, 700)))
    def wait(self, hours: int) -> None:
        self.now += hours
        self.opened.clock.now = NOW + self.now * HOUR

    @invariant()
    def never_more_than_there_is(self) -> None:
        for model, capacity in CAPACITY.items():
            mine = [slot for slot in self.slots.values() if slot.model == model]
            for hour in {slot.start for slot in mine}:
                assert sum(slot.gpus for slot in mine if slot.holds(hour)) <= capacity


def _at(hour: int) -> str:
    return f"{(NOW + hour * HOUR).replace(tzinfo=None).isoformat()}Z"


TestBookingMachine = BookingMachine.TestCase
TestBookingMachine.settings = settings(max_examples=max(20, settings().max_examples // 10), stateful_step_count=25)
