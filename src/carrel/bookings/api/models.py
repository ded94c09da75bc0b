"""What goes over the wire of the API: read strictly, everything wrong at once, with examples for the OpenAPI."""

import re
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from carrel.bookings.people import Person
from carrel.bookings.records import BookingRecord, Changes, LogEntry, Preview, State, Use, Window, Wish
from carrel.parsing import Malformed
from carrel.parsing.time import instant, seconds

FIRST_YEAR, LAST_YEAR = 1970, 2199
MOST_CARDS = 1024
MOST_DAYS = 3650
A_START, AN_END = "2026-12-12T08:00:00Z", "2026-12-17T08:00:00Z"
_UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and halves of characters, which no database and no page can show."""


def _instant(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ValueError("an instant such as 2026-12-12T09:00:00+01:00 is expected")
    try:
        moment = instant(value, "", "")
    except Malformed as malformed:
        raise ValueError(f"{malformed.expected} is expected; it needs an offset") from None
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ValueError(f"a year between {FIRST_YEAR} and {LAST_YEAR} is expected")
    return moment.replace(microsecond=0)


def is_writable(text: str) -> bool:
    return not _UNWRITABLE.search(text)


def _writable(text: str) -> str:
    if not is_writable(text):
        raise ValueError("text without control characters is expected")
    return text.strip()


Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": [A_START]}),
]
"""RFC 3339 with an offset."""
Word = Annotated[str, Field(max_length=255), AfterValidator(_writable)]
Prose = Annotated[str, Field(max_length=2000), AfterValidator(_writable)]
Email = Annotated[str, Field(max_length=320), AfterValidator(_writable)]
LeaseWriter = Annotated[int, Field(ge=1, le=MOST_CARDS, strict=True)]
Days = Annotated[float, Field(gt=0, le=MOST_DAYS, allow_inf_nan=False)]


class _Said(BaseModel):
    """What clients say: a field that does not exist is a typing error of theirs, and is told."""

    model_config = ConfigDict(extra="forbid")


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True)


class WishIn(_Said):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "a6000", "days": 5},
                {"model": "NVIDIA-RTX-A6000", "start": A_START, "end": AN_END, "cards": 2, "note": "ablation runs"},
                {"model": "a6000", "days": 1, "user": "ada@lab.org", "reason": "she asked me to, by phone"},
            ]
        }
    )

    model: Annotated[Word, Field(min_length=1, description="Its name, or a part of it that means one model.")]
    start: Annotated[Instant | None, Field(description="Without it: from now.")] = None
    end: Annotated[Instant | None, Field(description="Either this or `days`.")] = None
    days: Annotated[Days | None, Field(description="Of 24 hours each.")] = None
    cards: LeaseWriter = 1
    share: Annotated[bool, Field(description="One share of a card's memory instead of whole cards.")] = False
    user: Annotated[Email, Field(description="For whom, if not for oneself.")] = ""
    namespace: Word = ""
    note: Prose = ""
    reason: Annotated[Prose, Field(description="Needed to book for another, who is shown it.")] = ""

    @model_validator(mode="after")
    def _has_one_end(self) -> Self:
        if (self.end is None) == (self.days is None):
            raise ValueError("either end or days is expected")
        return self

    def wish(self) -> Wish:
        end = self.end if self.end is not None else _length(self.days or 0)
        return Wish(
            self.model, end, self.start, self.cards, self.share, self.user, self.namespace, self.note, self.reason
        )


class ChangesIn(_Said):
    model_config = ConfigDict(json_schema_extra={"examples": [{"end": AN_END}, {"cards": 1, "note": "one will do"}]})

    start: Instant | None = None
    end: Annotated[Instant | None, Field(description="Later extends, earlier shortens.")] = None
    cards: LeaseWriter | None = None
    note: Prose | None = None
    reason: Annotated[Prose, Field(description="Needed to change another's booking.")] = ""

    def changes(self) -> Changes:
        return Changes(self.start, self.end, self.cards, self.note, self.reason)


class CancelIn(_Said):
    reason: Annotated[Prose, Field(description="Needed to cancel another's booking.")] = ""


class MaintenanceIn(_Said):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "a6000", "start": A_START, "end": AN_END, "cards": 2, "why": "fans"}]}
    )

    model: Annotated[Word, Field(min_length=1)]
    start: Instant
    end: Instant
    cards: LeaseWriter = 1
    why: Annotated[Prose, Field(min_length=1)]


class BookingOut(_Told):
    id: str
    user: str
    model: str
    start: str
    end: str
    cards: int
    share: bool
    state: State
    ends: Annotated[str, Field(description="Its end, or when it was cancelled.")]
    cancelled_at: str | None
    namespace: str | None = None
    note: Annotated[str | None, Field(description="Only for its person and for lab admins.")] = None
    reason: Annotated[str | None, Field(description="Why somebody else made, changed or cancelled it.")] = None
    created_at: str
    created_by: str
    version: int
    consequence: Annotated[str | None, Field(description="What cancelling it now would lead to.")] = None


class BookingsOut(_Told):
    items: list[BookingOut]
    next_cursor: Annotated[str | None, Field(description="There is more: pass this as `cursor`.")] = None


class ProblemItem(_Told):
    code: Annotated[str, Field(examples=["cooldown"])]
    title: str
    message: str
    field: str | None = None


class PreviewOut(_Told):
    allowed: bool
    user: str
    model: str
    start: str
    end: str
    cards: int
    share: bool
    problems: list[ProblemItem]
    earliest_start: str | None
    hint: str | None


class DayOut(_Told):
    day: date
    free: int
    shares: int
    overbooked: int


class ModelOut(_Told):
    model: str
    cards: Annotated[int, Field(description="Healthy cards.")]
    memory_mib: int
    free_now: Annotated[int, Field(description="Not booked now: these can be booked.")]
    idle_now: Annotated[int | None, Field(description="Held by nobody now, booked or not. Null: no cluster is seen.")]
    next_free: Annotated[str | None, Field(description="From when on one is free for the shortest booking.")]
    overbooked: Annotated[int, Field(description="Promised beyond what there is, at worst.")]
    shares_per_card: int
    days: list[DayOut]


class ModelsOut(_Told):
    zone: str
    items: list[ModelOut]


class NextFreeOut(_Told):
    model: str
    earliest_start: Annotated[str | None, Field(description="Null: never.")]


class RulesOut(_Told):
    min_hours: float
    max_hours: float
    cooldown_hours: float
    planned: int
    shares_per_card: int
    zone: str


class UseOut(_Told):
    user: str
    model: str
    bookings: int
    card_hours: float


class UsageOut(_Told):
    start: str
    end: str
    items: list[UseOut]


class WindowOut(_Told):
    id: str
    model: str
    start: str
    end: str
    cards: int
    why: str
    created_by: str


class WindowsOut(_Told):
    items: list[WindowOut]


class LogEntryOut(_Told):
    number: int
    at: str
    actor: str
    action: str
    subject: str
    booking: str
    why: str
    details: dict[str, str]


class LogOut(_Told):
    items: list[LogEntryOut]
    next_before: Annotated[int | None, Field(description="There is more: pass this as `before`.")] = None


class FeedOut(_Told):
    url: Annotated[str, Field(description="Shown once. Who knows it sees your bookings; make a new one to revoke it.")]


class ProblemOut(_Told):
    """RFC 9457."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:carrel:rules-broken",
                    "title": "Cooldown not over",
                    "status": 422,
                    "detail": "14 d must lie between two bookings; yours of NVIDIA-RTX-A6000 ends Sat 28 Nov 2026"
                    " 09:00 CET. The next may start Sat 12 Dec 2026 09:00 CET.",
                    "code": "rules-broken",
                    "hint": "carrel book nvidia-rtx-a6000 --days 5 --from 2026-12-12T09:00+01:00",
                    "earliest_start": A_START,
                    "problems": [{"code": "cooldown", "title": "Cooldown not over", "message": "14 d must lie …"}],
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None
    earliest_start: str | None = None
    problems: list[ProblemItem] = []


# --- from what we know to what is told -------------------------------------------------------------------------------


def booking_out(record: BookingRecord, person: Person, now: datetime, consequence: str | None = None) -> BookingOut:
    """What is none of others' business is left out for them."""
    booking = record.booking
    is_private = booking.user != person.email and not person.is_lab_admin
    return BookingOut(
        id=booking.id,
        user=booking.user,
        model=booking.model,
        start=seconds(booking.start),
        end=seconds(booking.end),
        cards=booking.cards,
        share=booking.share,
        state=record.state(now),
        ends=seconds(booking.ends),
        cancelled_at=seconds(booking.cancelled_at) if booking.cancelled_at else None,
        namespace=None if is_private else record.namespace,
        note=None if is_private else record.note,
        reason=None if is_private else record.reason,
        created_at=seconds(record.created_at),
        created_by=record.created_by,
        version=record.version,
        consequence=consequence,
    )


def preview_out(seen: Preview) -> PreviewOut:
    wish = seen.wish
    return PreviewOut(
        allowed=seen.is_allowed,
        user=wish.user,
        model=wish.model,
        start=seconds(wish.start),
        end=seconds(wish.end),
        cards=wish.cards,
        share=wish.share,
        problems=[ProblemItem(code=p.rule, title=p.title, message=p.message) for p in seen.problems],
        earliest_start=seconds(seen.earliest_start) if seen.earliest_start else None,
        hint=seen.hint or None,
    )


def window_out(window: Window) -> WindowOut:
    m = window.maintenance
    return WindowOut(
        id=window.id,
        model=m.model,
        start=seconds(m.start),
        end=seconds(m.end),
        cards=m.cards,
        why=window.why,
        created_by=window.created_by,
    )


def entry_out(entry: LogEntry) -> LogEntryOut:
    fields: dict[str, Any] = {name: getattr(entry, name) for name in ("number", "actor", "action", "subject")}
    return LogEntryOut(
        **fields, at=seconds(entry.at), booking=entry.booking, why=entry.why, details=dict(entry.details)
    )


def use_out(use: Use) -> UseOut:
    return UseOut(user=use.user, model=use.model, bookings=use.bookings, card_hours=round(use.card_hours, 2))


def _length(days: float) -> timedelta:
    return timedelta(seconds=round(timedelta(days=days).total_seconds()))
