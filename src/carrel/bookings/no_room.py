"""Why there is no room for a booking: when it is missing, who has the GPUs then, and when there is room. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from carrel.bookings.calendar import Span
from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.records import BookingRecord, MaintenanceWindow
from carrel.bookings.rules import Booking
from carrel.parsing.time_words import moment, words

MOST_NAMED = 4
"""How many of those who have the GPUs are named; the timeline shows all."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    wanted: Booking
    stock: ModelCapacity
    missing: Span
    """The first time within the wanted one that has too little room."""
    bookings: Sequence[BookingRecord]
    windows: Sequence[MaintenanceWindow]
    """Those that take GPUs in that time."""
    room_from: datetime | None = None
    """When there is room for all of it; None: never, or it is a change."""
    room_until: datetime | None = None
    """Until when there is room, if it is long enough to be booked."""

    def sentences(self, zone: tzinfo) -> str:
        wanted, stock = self.wanted, self.stock
        if not wanted.share and wanted.gpus > stock.gpus:
            are = f"is {stock.gpus} GPU" if stock.gpus == 1 else f"are {stock.gpus} GPUs"
            return f"There {are} of {stock.model} to book; {wanted.gpus} are asked for.{self._others}"
        return " ".join(self._sentences(zone))

    def _sentences(self, zone: tzinfo) -> Iterator[str]:
        wanted, free = self.wanted, max(0, self.missing.free)
        when = f"from {moment(self.missing.start, zone)} to {moment(self.missing.end, zone)}"
        if wanted.share:
            yield f"No share of a {self.stock.model} is free {when}.{self._others}"
        else:
            gpus = f"{free} of {self.stock.gpus} GPUs of {self.stock.model} {'is' if free == 1 else 'are'} free {when}"
            yield f"{gpus}; {wanted.gpus} {'is' if wanted.gpus == 1 else 'are'} asked for.{self._others}"
        if takers := self._takers(zone):
            more = len(takers) - MOST_NAMED
            named = [*takers[:MOST_NAMED], *([f"{more} more on the timeline"] * (more > 0))]
            yield f"Taken: {'; '.join(named)}."
        if self.room_until is not None:
            yield f"There is room until {moment(self.room_until, zone)}."
        if self.room_from is not None:
            yield f"There is room for {words(wanted.end - wanted.start)} from {moment(self.room_from, zone)}."

    @property
    def _others(self) -> str:
        """Why further GPUs of the model cannot be booked."""
        return f" {self.stock.why_set_aside}." if self.stock.why_set_aside else ""

    def _takers(self, zone: tzinfo) -> list[str]:
        """Those that end first come first."""

        def line(who: str, start: datetime, end: datetime) -> tuple[datetime, str]:
            return end, f"{who} from {moment(start, zone)} to {moment(end, zone)}"

        lines = [
            line(f"{_amount(each.gpus)} by maintenance{f' ({window.why})' if window.why else ''}", each.start, each.end)
            for window in self.windows
            for each in [window.maintenance]
        ]
        for record in self.bookings:
            each = record.booking
            who = f"the group {each.group}" if each.group else each.user
            amount = "a share" if each.share else _amount(each.gpus)
            lines.append(line(f"{amount} by {who}", each.start, each.ends))
        return [text for _, text in sorted(lines)]


def _amount(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus != 1)}"
