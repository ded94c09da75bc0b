"""Sets and removes maintenance: each in one transaction, which also notes whom it hits, so that they are told.

Whoever is hit is found again when a window is set or removed: what a preview has shown may have changed since.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from carrel.bookings.commands import new_id
from carrel.bookings.maintenance import Hit, Maintenance, hit_by, places_named
from carrel.bookings.notifications.messages import Occasion
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRefusal, LogEntry, RefusalReason
from carrel.bookings.rules import END_AFTER_START, UNKNOWN_MODEL, Broken
from carrel.bookings.store.bookings import SqlReading, SqlWriting
from carrel.ids import BookingId
from carrel.ledger.refusals import Refusal
from carrel.parsing.addresses import is_address
from carrel.parsing.time import seconds


@dataclass(frozen=True, slots=True)
class MaintenanceRequest:
    """A maintenance that somebody asks for: of nodes and GPUs, or of a number of GPUs of a model."""

    start: datetime
    end: datetime
    places: tuple[str, ...] = ()
    """Nodes and single GPUs: `gpu-1`, `gpu-2/3`, or a UUID."""
    model: str = ""
    gpus: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class MaintenancePreview:
    """What would happen; nothing is changed."""

    window: Maintenance
    hit: Hit


class MaintenanceCommands:
    def __init__(self, queries: BookingQueries) -> None:
        self._queries = queries

    async def preview(self, asked: MaintenanceRequest, by: Person) -> MaintenancePreview | BookingRefusal:
        window = self._window(asked, by)
        if isinstance(window, BookingRefusal):
            return window
        async with self._queries.store.reading() as reading:
            return MaintenancePreview(window, await self._hit(reading, window))

    async def add(self, asked: MaintenanceRequest, by: Person) -> MaintenancePreview | BookingRefusal:
        """Bookings in that time stay and no pod is stopped; new bookings find fewer GPUs.

        Asked for again with the same fields, as after a lost answer or a double click, it answers with what is there.
        """
        window = self._window(asked, by)
        if isinstance(window, BookingRefusal):
            return window
        async with self._queries.store.writing() as writing:
            there = await writing.maintenance(window.start, window.end)
            same = next((each for each in there if replace(each, id="") == window), None)
            window = same or replace(window, id=new_id())
            hit = await self._hit(writing, window)
            if same:
                return MaintenancePreview(window, hit)
            await writing.add_maintenance(window)
            await self._log(writing, "maintenance-added", window, hit, by)
        return MaintenancePreview(window, hit)

    async def remove(self, id: str, by: Person) -> Maintenance | BookingRefusal:
        if not by.may_set_maintenance:
            return _FORBIDDEN
        async with self._queries.store.writing() as writing:
            window = await writing.remove_maintenance(id)
            if window is None:
                why = "There is no such maintenance window."
                return BookingRefusal(RefusalReason.NOT_FOUND, why, hint="carrel maintenance list")
            is_over = window.end <= self._queries.now()
            hit = Hit({}) if is_over else await self._hit(writing, window)
            await self._log(writing, "maintenance-removed", window, hit, by)
            return window

    def _window(self, asked: MaintenanceRequest, by: Person) -> Maintenance | BookingRefusal:
        if not by.may_set_maintenance:
            return _FORBIDDEN
        problems: list[Broken] = []
        model: str | Refusal = ""
        if bool(asked.places) == bool(asked.model):
            problems.append(Broken("what", "Name nodes and GPUs, or a model with a number of GPUs.", "What is closed?"))
        elif asked.model and isinstance(model := self._queries.model(asked.model), Refusal):
            problems.append(UNKNOWN_MODEL.broken(str(model)))
        named = places_named(asked.places, self._queries.inventory.nodes(), self._queries.inventory.gpus_of)
        problems += [Broken("unknown-place", str(why), "No such node or GPU") for why in named.unknown]
        if asked.end <= asked.start:
            problems.append(END_AFTER_START.broken("The end must be after the start."))
        elif asked.end <= self._queries.now():
            problems.append(Broken("not-in-the-past", "The end has passed already.", "The time has passed"))
        if problems:
            title = problems[0].title if len(problems) == 1 else f"{len(problems)} mistakes"
            return BookingRefusal(RefusalReason.RULES, title, tuple(problems), hint=HINT)
        gpus = max(1, asked.gpus) if model else 0
        what = (str(model), asked.start, asked.end, gpus, asked.why, by.email)
        return Maintenance(*what, nodes=named.nodes, single=named.single)

    async def _hit(self, reading: SqlReading, window: Maintenance) -> Hit:
        """Bookings are of a model, not of a node: one is hit if too few GPUs are left for all, or if a pod of it is on
        one of the GPUs now."""
        queries = self._queries
        start = max(window.start, queries.now())
        models = {name: n for name, stock in queries.inventory.stock().items() if (n := window.gpus_of(stock))}
        records = await reading.within(start, window.end)
        lacking: set[BookingId] = set()
        for model in models:
            calendar = await queries.calendar(reading, model, start, window.end, planned=window)
            short = [span for span in calendar.spans(start, window.end) if span.free < 0]
            bookings = (record.booking for record in records if record.booking.model == model)
            lacking |= {b.id for b in bookings if any(b.start < span.end and span.start < b.ends for span in short)}
        pods = queries.inventory.pods_on(window)
        return hit_by(window, models, (record.booking for record in records), lacking, pods)

    async def _log(self, writing: SqlWriting, action: str, window: Maintenance, hit: Hit, by: Person) -> None:
        now, is_new = self._queries.now(), action == "maintenance-added"
        what = what_is_closed(window)
        times = {"start": seconds(window.start), "end": seconds(window.end)}
        details = {"maintenance": what, **times, **({"gpus": str(window.gpus)} if window.model else {})}
        await writing.write_log(LogEntry(now, by.email, action, why=window.why, details=details))
        occasion = Occasion.MAINTENANCE if is_new else Occasion.MAINTENANCE_OFF
        for person in filter(is_address, hit.people):
            theirs = [each for each in hit.bookings if each.booking.user == person]
            pods = {name for each in theirs for name in each.pods} | _names(hit, person)
            facts = {"maintenance": what, **times, "pods": ", ".join(sorted(pods))}
            facts["lacking"] = str(sum(each.lacks_gpus for each in theirs))
            given = {name: fact for name, fact in facts.items() if fact not in ("", "0")}
            await writing.write_log(LogEntry(now, by.email, occasion.value, person, why=window.why, details=given))


def what_is_closed(window: Maintenance) -> str:
    """`gpu-1, gpu-2/3`, or `2 × NVIDIA-RTX-A6000`."""
    return ", ".join(window.places) or f"{window.gpus} × {window.model}"


def _names(hit: Hit, person: str) -> set[str]:
    return {pod.name for pod in hit.every_pod if pod.person == person}


HINT = "carrel maintenance add --help"
_FORBIDDEN = BookingRefusal(RefusalReason.FORBIDDEN, "Only a lab admin may set maintenance.")
