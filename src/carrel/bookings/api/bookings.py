"""/api/v1/bookings: list, search, create, preview, change and cancel."""

import base64
import binascii
import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from carrel.bookings import records
from carrel.bookings.api.errors import accepted, malformed, problem_of
from carrel.bookings.api.models import (
    BookingIn,
    BookingOut,
    BookingsOut,
    CancelIn,
    ChangesIn,
    Instant,
    PreviewOut,
    ProblemItem,
    Word,
)
from carrel.bookings.people import Person
from carrel.bookings.queries import Reader
from carrel.bookings.records import (
    BookingRecord,
    BookingRefusal,
    Cursor,
    IdempotencyKey,
    Preview,
    RefusalReason,
    State,
)
from carrel.bookings.rules import Booking
from carrel.bookings.service import OnlyWithBookings, PersonsService, ServiceParts
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.cluster.coverage.coverage_words import BookingInUse
from carrel.parsing import Malformed
from carrel.parsing.addresses import normal
from carrel.parsing.time import instant, seconds

router = APIRouter(prefix="/bookings", tags=["bookings"], dependencies=[OnlyWithBookings])

NO_SUCH_BOOKING = BookingRefusal(RefusalReason.NOT_FOUND, "There is no such booking.", hint="carrel list")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_ETAG = re.compile(r'(?:W/)?"([0-9]{1,9})"')

IdempotencyHeader = Annotated[
    str | None,
    Header(
        description="Your own name for this request, such as a UUID: sent again, it returns the same booking.",
        examples=["2f1c7a52-6c0e-4c0f-9d0b-3a8f5a1f0c11"],
    ),
]
IfMatch = Annotated[
    str | None, Header(description="The ETag that you read: 412 if the booking was changed since then.")
]


@router.get("", summary="List and search, ordered by start")
async def find(
    service: PersonsService,
    person: CurrentPerson,
    id: Annotated[Word, Query(description="How the id begins.")] = "",
    user: Annotated[Word, Query(description="Whose; `me` for your own.")] = "",
    group: Annotated[list[Word] | None, Query(description="Of these groups; with `user` also these.")] = None,
    with_groups: Annotated[bool, Query(description="With `user=me`: also those of your groups.")] = False,
    model: Word = "",
    state: Annotated[list[State] | None, Query(description="Several may be given.")] = None,
    start: Annotated[Instant | None, Query(description="Those that end after this.")] = None,
    end: Annotated[Instant | None, Query(description="Those that start before this.")] = None,
    q: Annotated[Word, Query(description="Part of the person, the group, the model, or your own notes.")] = "",
    newest_first: bool = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str, Query(max_length=400)] = "",
) -> BookingsOut:
    named = service.queries.model(model) if model else ""
    whose = person.email if user == "me" else normal(user)
    reader = await service.queries.reader(person)
    theirs = reader.groups if with_groups and whose == person.email else ()
    query = records.Query(
        id=id,
        user=whose,
        groups=frozenset({*theirs, *filter(None, group or ())}),
        model=named if isinstance(named, str) else model,
        states=frozenset(state or ()),
        start=start,
        end=end,
        text=q,
        text_reader="" if person.is_lab_admin else person.email,
        after=_read_cursor(cursor) if cursor else None,
        newest_first=newest_first,
        limit=limit,
    )
    page = await service.queries.find(query)
    now = service.queries.now()
    return BookingsOut(
        items=[booking_out(record, reader, now, use=_use_of(service, record)) for record in page.records],
        next_cursor=_write_cursor(page.next) if page.next else None,
    )


@router.post("", status_code=201, summary="Make a booking")
async def create(
    service: PersonsService,
    person: CurrentPerson,
    asked: BookingIn,
    response: Response,
    idempotency_key: IdempotencyHeader = None,
) -> BookingOut:
    key = None
    if idempotency_key is not None:
        if not _KEY.fullmatch(idempotency_key):
            raise malformed(("Idempotency-Key", "1 to 255 visible ASCII characters are expected"))
        key = IdempotencyKey(idempotency_key, asked.fingerprint)
    record = accepted(await service.commands.create(asked.request(), person, key))
    response.headers["location"] = f"/api/v1/bookings/{record.booking.id}"
    return await _answer(service, person, record, response)


@router.post("/preview", summary="What would happen; nothing is changed")
async def preview(service: PersonsService, person: CurrentPerson, asked: BookingIn) -> PreviewOut:
    return preview_out(accepted(await service.commands.preview(asked.request(), person)))


@router.get("/{id}", summary="One booking, and what cancelling it would lead to", response_model=BookingOut)
async def get(
    service: PersonsService,
    person: CurrentPerson,
    id: str,
    response: Response,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Any:
    record = await service.queries.get(_valid_id(id))
    if record is None:
        raise problem_of(NO_SUCH_BOOKING)
    is_running = record.state(service.queries.now()) is State.ACTIVE
    if if_none_match == _etag(record) and not (is_running and service.cluster_view):
        # What pods use of a booking that runs changes without a new version.
        return Response(status_code=304, headers={"etag": _etag(record)})
    return await _answer(service, person, record, response)


@router.patch("/{id}", summary="Extend, shorten or move; before it begins also another model")
async def change(
    service: PersonsService,
    person: CurrentPerson,
    id: str,
    changes: ChangesIn,
    response: Response,
    if_match: IfMatch = None,
) -> BookingOut:
    outcome = await service.commands.change(_valid_id(id), changes.changes(), person, _version(if_match))
    return await _answer(service, person, accepted(outcome), response)


@router.post("/{id}/preview", summary="What a change would do; nothing is changed")
async def preview_change(service: PersonsService, person: CurrentPerson, id: str, changes: ChangesIn) -> PreviewOut:
    return preview_out(accepted(await service.commands.preview_change(_valid_id(id), changes.changes(), person)))


@router.post("/{id}/cancel", summary="Cancel; an active booking ends now, and its cooldown begins")
async def cancel(
    service: PersonsService,
    person: CurrentPerson,
    id: str,
    response: Response,
    why: CancelIn | None = None,
    if_match: IfMatch = None,
) -> BookingOut:
    reason = why.reason if why else ""
    outcome = await service.commands.cancel(_valid_id(id), person, reason, _version(if_match))
    return await _answer(service, person, accepted(outcome), response)


def preview_out(seen: Preview) -> PreviewOut:
    return PreviewOut(
        allowed=seen.is_allowed,
        **_what_is_booked(seen.booking),
        problems=[ProblemItem(code=p.rule, title=p.title, message=p.message) for p in seen.problems],
        earliest_start=seen.earliest_start,
        hint=seen.hint or None,
    )


async def _answer(service: ServiceParts, person: Person, record: BookingRecord, response: Response) -> BookingOut:
    response.headers["etag"] = _etag(record)
    now = service.queries.now()
    is_ahead = record.state(now) in (State.PLANNED, State.ACTIVE)
    consequence = service.commands.after_cancelling(record) if is_ahead else None
    reader = await service.queries.reader(person) if record.booking.group else Reader(person)
    return booking_out(record, reader, now, consequence, _use_of(service, record))


def booking_out(
    record: BookingRecord,
    reader: Reader,
    now: datetime,
    consequence: str | None = None,
    use: BookingInUse | None = None,
) -> BookingOut:
    """Without what only its person, the members of its group and lab admins may see, for everybody else. The map shows
    everybody all pods."""
    booking, may_see = record.booking, reader.may_see(record)
    return BookingOut(
        id=booking.id,
        **_what_is_booked(booking),
        state=record.state(now),
        ends=booking.ends,
        cancelled_at=booking.cancelled_at,
        namespace=record.namespace if may_see else None,
        note=record.note if may_see else None,
        reason=record.reason if may_see else None,
        created_at=record.created_at,
        created_by=record.created_by,
        version=record.version,
        consequence=consequence,
        used=use.used if use else None,
        pods=list(use.pods) if use else [],
    )


def _what_is_booked(booking: Booking) -> dict[str, Any]:
    return {name: getattr(booking, name) for name in ("user", "model", "start", "end", "gpus", "share", "group")}


def _use_of(service: ServiceParts, record: BookingRecord) -> BookingInUse | None:
    """None: there is no cluster, or the booking does not run there."""
    return service.cluster_view.coverage.use_of(record.booking.id) if service.cluster_view else None


def _etag(record: BookingRecord) -> str:
    return f'"{record.version}"'


def _version(if_match: str | None) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise malformed(("If-Match", 'an ETag such as "3" is expected'))
    return int(match[1])


def _valid_id(id: str) -> str:
    """A text that cannot be an id is not looked up."""
    if not _ID.fullmatch(id):
        raise problem_of(NO_SUCH_BOOKING)
    return id


def _write_cursor(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(f"{seconds(cursor.start)} {cursor.id}".encode()).decode()


def _read_cursor(text: str) -> Cursor:
    try:
        start, id = base64.urlsafe_b64decode(text.encode()).decode("ascii").split(" ")
        if _ID.fullmatch(id):
            return Cursor(instant(start, "cursor", "start"), id)
    except (binascii.Error, ValueError, Malformed):
        pass
    raise malformed(("cursor", "a cursor from an earlier answer is expected"))
