"""What the service keeps about bookings, and what people ask for and get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from carrel.bookings.calendar import DayAvailability, FreeNow
from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.maintenance import Maintenance
from carrel.bookings.rules import Booking, Broken

# --- what people ask for ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BookingRequest:
    """A booking that somebody asks for."""

    model: str
    """Its name, or a part of it that fits one model only: `a6000`."""
    end: datetime | timedelta
    """An instant, or the length from the start."""
    start: datetime | None = None
    """None: when it is accepted."""
    gpus: int = 1
    share: bool = False
    user: str = ""
    """Empty: the caller. For another person it needs a role and a reason."""
    namespace: str = ""
    note: str = ""
    reason: str = ""
    """Why somebody books for another person, who is shown it."""
    may_be_user_name: bool = False
    """`user` may be a name without an e-mail address. Only MAIA's clients have this."""
    group: str = ""
    """The group whose booking it is; empty: it is the person's own. Its managers and lab admins may."""

    def times(self, now: datetime) -> tuple[datetime, datetime]:
        start = self.start or now
        return start, start + self.end if isinstance(self.end, timedelta) else self.end


@dataclass(frozen=True, slots=True)
class Changes:
    """What to change in a booking; None leaves it as it is."""

    start: datetime | None = None
    end: datetime | None = None
    gpus: int | None = None
    model: str | None = None
    """Its name, or a part of it that fits one model only."""
    note: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's own name for one request: sent again with the same name, it makes no second booking."""

    key: str
    fingerprint: str
    """A hash of the request. The same key with another request is a mistake, and is refused."""


class State(Enum):
    PLANNED = "planned"
    ACTIVE = "active"
    ENDED = "ended"
    CANCELLED = "cancelled"
    """While it was active, or before it began."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which bookings. An empty field does not restrict; `end` is exclusive."""

    id: str = ""
    """How the id begins."""
    user: str = ""
    """The person's own bookings, not those that they made for a group."""
    groups: frozenset[str] = frozenset()
    """Bookings of these groups; with `user`: these and the person's own."""
    model: str = ""
    states: frozenset[State] = frozenset()
    start: datetime | None = None
    end: datetime | None = None
    text: str = ""
    """Part of the person, the group, the model, the namespace or the note."""
    text_reader: str = ""
    """The person who searches: namespaces and notes of others are left out. Empty: a person who may read everything."""
    after: "Cursor | None" = None
    newest_first: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last booking of a page."""

    start: datetime
    id: str


# --- what they get ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BookingRecord:
    """A booking as it is stored."""

    booking: Booking
    created_at: datetime
    created_by: str
    version: int = 1
    """One more with every change."""
    namespace: str = ""
    note: str = ""
    reason: str = ""
    """Why somebody else made, changed or cancelled it."""
    key: IdempotencyKey | None = None

    def cancelled_at(self, now: datetime, settling: timedelta, *, is_used: bool) -> datetime:
        """When it was cancelled, for the rules, if it is cancelled now.

        A person who has booked the wrong thing takes it back: within the settling time nobody has lost a GPU to it, and
        if no pod uses it either, it counts as cancelled before it began.
        """
        is_settling = self.booking.start <= now and self.created_at <= now < self.created_at + settling
        return self.booking.start - timedelta(seconds=1) if is_settling and not is_used else now

    def state(self, now: datetime) -> State:
        booking = self.booking
        if booking.is_planned(now):
            return State.PLANNED
        if booking.is_active(now):
            return State.ACTIVE
        return State.CANCELLED if booking.cancelled_at is not None and booking.ends < booking.end else State.ENDED


@dataclass(frozen=True, slots=True)
class BookingSearchResult:
    records: tuple[BookingRecord, ...]
    next: Cursor | None = None
    """Where the next page starts; None: this is the last."""


class RefusalReason(Enum):
    """Why a command was refused."""

    NO_ADDRESS = "no-address"
    """The user is no e-mail address."""
    NO_GROUP_NAME = "no-group-name"
    LIST = "bad-list"
    """A pasted list has mistakes."""
    RULES = "rules-broken"
    NOT_FOUND = "not-found"
    FORBIDDEN = "forbidden"
    CONTRADICTION = "contradiction"
    """For a person and for a group at the same time."""
    CHANGED = "changed-meanwhile"
    KEY_REUSED = "idempotency-key-reused"
    NOT_READY = "inventory-unknown"


@dataclass(frozen=True, slots=True)
class BookingRefusal:
    """A command was refused and nothing was changed: everything that is wrong, when it could work, and a command that
    would."""

    reason: RefusalReason
    message: str
    problems: tuple[Broken, ...] = ()
    earliest_start: datetime | None = None
    """The first start that both the rules and the calendar allow; None if there is none."""
    hint: str = ""
    """A command line, ready to run."""

    @property
    def messages(self) -> list[str]:
        """Everything that is wrong, in sentences."""
        return [problem.message for problem in self.problems] or [self.message]


@dataclass(frozen=True, slots=True)
class Preview:
    """What would happen to a request."""

    booking: Booking
    problems: tuple[Broken, ...]
    earliest_start: datetime | None
    hint: str = ""

    @property
    def is_allowed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Availability:
    """One model: how many can be booked now, when the next one can, and each day."""

    stock: ModelCapacity
    now: FreeNow
    days: tuple[DayAvailability, ...] = ()
    shares_per_gpu: int = 1
    unheld_now: int | None = None
    """Held by no pod at this moment, booked or not; None without a cluster."""

    @property
    def overbooked(self) -> int:
        return max([-self.now.unbooked, 0, *(day.overbooked for day in self.days)])


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """The GPUs of a model that a pod without a booking can get now."""

    model: str
    gpus: int
    next_free: datetime | None = None
    """When one is free, if none is now and it is known."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What is free, with the bookings and maintenance windows of those days and of later ones."""

    models: tuple[Availability, ...]
    records: Sequence[BookingRecord]
    windows: Sequence[Maintenance]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Who did what, when, to whose booking, and why."""

    at: datetime
    actor: str
    action: str
    """`booked`, `changed`, `cancelled`, `maintenance-added`, `maintenance-removed`, `feed-made`, `feed-revoked`,
    `group-member`, `group-manager`, `group-removed`, …"""
    subject: str = ""
    """The person whom it concerns."""
    booking: str = ""
    why: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    """Given by the store, in rising order."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which entries of the log. An empty field does not restrict; `end` is exclusive."""

    subject: str = ""
    """Whom it concerns."""
    person: str = ""
    """Whom it concerns, or who did it."""
    action: str = ""
    start: datetime | None = None
    end: datetime | None = None
    before: int = 0
    """Only lower numbers."""
    limit: int = 100


class StoreUnavailable(Exception):
    """The store did not answer. A write may have taken effect all the same, if only its answer was lost."""
