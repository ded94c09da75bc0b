"""Creates, changes and cancels bookings: each in one serialised transaction that reads, judges, writes and logs.

Who may book for a group is read in the same transaction.

A client that crashes or loses the answer may ask again: a request with an `IdempotencyKey` is booked once, a change may
name the version it is meant for, and a cancelled booking stays cancelled. Nothing is ever deleted.
"""

from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from carrel.bookings.advice import HINT_FREE, HINT_LIST, NoRoom, hint_for, hint_for_change
from carrel.bookings.calendar import Span
from carrel.bookings.group_commands import not_bookable, not_manager
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import (
    BookingRecord,
    BookingRefusal,
    BookingRequest,
    Changes,
    IdempotencyKey,
    LogEntry,
    LogQuery,
    Preview,
    RefusalReason,
    State,
)
from carrel.bookings.rules import (
    OVER,
    Booking,
    RuleInput,
    broken_rules,
    rule_input,
)
from carrel.bookings.sign_in.secrets import hashed
from carrel.bookings.store.bookings import SqlReading, SqlWriting
from carrel.ids import NO_BOOKING, BookingId, short_id
from carrel.ledger.refusals import Refusal
from carrel.parsing.addresses import is_address, is_user_name, normal
from carrel.parsing.time import moment, seconds, words

PERSON_REMOVED = "person-removed"
"""In the log."""


class BookingCommands:
    def __init__(self, queries: BookingQueries) -> None:
        self._queries = queries

    # --- new bookings ------------------------------------------------------------------------------------------------

    async def preview(self, request: BookingRequest, by: Person) -> Preview | BookingRefusal:
        """What would happen, always with the first start that is possible. Nothing is changed."""
        if refusal := self._not_requestable(request, by):
            return refusal
        now = self._queries.now()
        booking = self._booking_of(request, by, now)
        async with self._queries.store.reading() as reading:
            if forbidden := await not_bookable(reading, request.group, by):
                return forbidden
            seen = await self._judge(reading, booking, now)
            if seen.problems:
                return seen
            return replace(seen, earliest_start=await self._queries.first_allowed_start(reading, booking))

    async def create(
        self, request: BookingRequest, by: Person, key: IdempotencyKey | None = None
    ) -> BookingRecord | BookingRefusal:
        if refusal := self._not_requestable(request, by):
            return refusal
        asked_at = self._queries.now()
        async with self._queries.store.writing() as writing:
            if key is not None and (made := await writing.made_with_key(by.email, key.key)) is not None:
                return made if made.key == key else _key_reused(key)
            if forbidden := await not_bookable(writing, request.group, by):
                return forbidden
            for person in {by.email, normal(request.user) or by.email}:
                if await writing.log(LogQuery(subject=person, action=PERSON_REMOVED, start=asked_at, limit=1)):
                    return BookingRefusal(RefusalReason.FORBIDDEN, f"{person} was removed while this request waited.")
            # The clock is read inside the transaction: after a wait, a start that has passed must not be booked. And it
            # is read once: a booking that starts now must not have passed a second later.
            now = self._queries.now()
            booking = self._booking_of(request, by, now)
            seen = await self._judge(writing, booking, now)
            if not seen.is_allowed:
                return _refused(seen)
            record = BookingRecord(
                booking=replace(booking, id=BookingId(new_id())),
                created_at=self._queries.now(),
                created_by=by.email,
                namespace=request.namespace,
                note=request.note,
                reason=request.reason if booking.user != by.email else "",
                key=key,
            )
            await writing.add(record)
            await self._log(writing, "booked", record, by, request.reason)
            return record

    # --- changes -----------------------------------------------------------------------------------------------------

    async def preview_change(self, id: str, changes: Changes, by: Person) -> Preview | BookingRefusal:
        async with self._queries.store.reading() as reading:
            old = await self._found(reading, id, changes.reason, by)
            return old if isinstance(old, BookingRefusal) else await self._judge_change(reading, old, changes)

    async def change(
        self, id: str, changes: Changes, by: Person, version: int | None = None
    ) -> BookingRecord | BookingRefusal:
        """Extends, shortens or moves a booking. With a version: only if the booking still has it."""
        if refusal := self._not_ready():
            return refusal
        async with self._queries.store.writing() as writing:
            old = await self._found(writing, id, changes.reason, by, version)
            if isinstance(old, BookingRefusal):
                return old
            seen = await self._judge_change(writing, old, changes)
            if not seen.is_allowed:
                return _refused(seen)
            note = old.note if changes.note is None else changes.note
            if (seen.booking, note) == (old.booking, old.note):
                return old
            why = _why(old, changes.reason, by)
            new = replace(old, booking=seen.booking, note=note, version=old.version + 1, reason=why)
            await writing.replace(new)
            await self._log(writing, "changed", new, by, changes.reason)
            return new

    async def cancel(
        self, id: str, by: Person, reason: str = "", version: int | None = None
    ) -> BookingRecord | BookingRefusal:
        """A planned booking stops counting, and so does one that has just been made and that no pod has used; an active
        one ends now and its cooldown begins. It stays cancelled."""
        async with self._queries.store.writing() as writing:
            old = await self._found(writing, id, reason, by, version)
            if isinstance(old, BookingRefusal):
                return old
            now = self._queries.now()
            if old.booking.cancelled_at is not None:
                return old
            if old.state(now) is State.ENDED:
                over = OVER.broken(f"This booking ended {moment(old.booking.ends, self._queries.zone)}.")
                return BookingRefusal(RefusalReason.RULES, over.title, (over,), hint=HINT_LIST)
            return await self.cancel_in(writing, old, by, reason)

    async def cancel_in(self, writing: SqlWriting, old: BookingRecord, by: Person, reason: str) -> BookingRecord:
        """Cancels a planned or active booking in a transaction that others have begun. Who may, they have asked."""
        booking = replace(old.booking, cancelled_at=self._cancelled_at(old, self._queries.now()))
        new = replace(old, booking=booking, version=old.version + 1, reason=_why(old, reason, by))
        await writing.replace(new)
        await self._log(writing, "cancelled", new, by, reason)
        return new

    def after_cancelling(self, record: BookingRecord) -> str:
        """What cancelling would lead to, in one sentence."""
        now, cooldown = self._queries.now(), self._queries.rules.cooldown
        if record.booking.is_planned(now):
            return "Cancelling now gives the GPUs back, and no cooldown follows: the booking has not begun."
        if not record.booking.is_active(now):
            return "It is over; there is nothing to cancel."
        if cooldown and self._cancelled_at(record, now) < record.booking.start:
            return "Cancelling now gives the GPUs back, and no cooldown follows: nothing has used the booking yet."
        if not cooldown:
            return "Cancelling now ends it at once."
        following = moment(now + cooldown, self._queries.zone)
        return f"Cancelling now starts the cooldown of {words(cooldown)} today: the next may start {following}."

    def _cancelled_at(self, record: BookingRecord, now: datetime) -> datetime:
        settling = self._queries.rules.settling_time
        return record.cancelled_at(now, settling, is_used=self._queries.inventory.is_used(record.booking.id))

    # --- feeds -------------------------------------------------------------------------------------------------------

    async def make_feed(self, by: Person) -> str:
        """A new secret for the person's calendar feed; the old one stops working."""
        secret = new_id() + new_id()
        await self._set_feed(by, hashed(secret), "feed-made")
        return secret

    async def revoke_feed(self, by: Person) -> None:
        await self._set_feed(by, None, "feed-revoked")

    async def _set_feed(self, by: Person, secret_hash: str | None, action: str) -> None:
        async with self._queries.store.writing() as writing:
            await writing.set_feed(by.email, secret_hash)
            await writing.write_log(LogEntry(self._queries.now(), by.email, action, subject=by.email))

    # --- the rules ---------------------------------------------------------------------------------------------------

    def _booking_of(self, request: BookingRequest, by: Person, now: datetime) -> Booking:
        start, end = request.times(now)
        model = self._queries.model(request.model)
        return Booking(
            id=NO_BOOKING,
            user=normal(request.user) or by.email,
            model=request.model if isinstance(model, Refusal) else model,
            start=start,
            end=end,
            gpus=request.gpus,
            share=request.share,
            group=request.group,
        )

    async def _judge_change(self, reading: SqlReading, record: BookingRecord, changes: Changes) -> Preview:
        old = record.booking
        asked = changes.model or old.model
        model = asked if asked == old.model else self._queries.model(asked)
        new = replace(
            old,
            model=asked if isinstance(model, Refusal) else model,
            start=changes.start or old.start,
            end=changes.end or old.end,
            gpus=changes.gpus or old.gpus,
        )
        return await self._judge(reading, new, self._queries.now(), old)

    async def _judge(self, reading: SqlReading, wanted: Booking, now: datetime, old: Booking | None = None) -> Preview:
        """All rules, those about models and capacity included."""
        queries = self._queries
        given = rule_input(wanted, await queries.own(reading, wanted), now, queries.rules, queries.zone, old)
        if given.is_over:
            return Preview(wanted, broken_rules(given), given.earliest_start, HINT_LIST)
        parts = [(start, end) for start, end in given.added if start < end]
        model = queries.model(wanted.model)
        if isinstance(model, Refusal) and not (parts or given.old is None):
            model = wanted.model  # a change that adds nothing needs neither room nor a model that is still there
        if isinstance(model, Refusal):
            return Preview(wanted, broken_rules(replace(given, unknown_model=str(model))), None, HINT_FREE)
        calendar = await queries.calendar(reading, model, wanted.start, max(wanted.start, wanted.end), but=wanted.id)
        missing = calendar.missing(wanted, parts)
        shortage = await self._why_no_room(reading, given, missing) if missing else ""
        broken = broken_rules(replace(given, shortage=shortage))
        if not broken:
            return Preview(wanted, (), wanted.start)  # no need to read the bookings that lie ahead
        length = max(queries.rules.min_duration, min(given.length, queries.rules.max_duration))
        most = queries.rules.most_gpus(bool(wanted.group)) or wanted.gpus
        legal = replace(
            wanted,
            start=given.earliest_start,
            end=given.earliest_start + length,
            gpus=min(wanted.gpus, most),
        )
        earliest = await queries.first_start(reading, legal)
        if given.old is not None:
            hint = hint_for_change(given, broken, missing)
        else:
            hint = hint_for(legal, broken, earliest, given)
        return Preview(wanted, broken, earliest, hint)

    async def _why_no_room(self, reading: SqlReading, given: RuleInput, missing: Span) -> str:
        wanted, queries = given.booking, self._queries
        records = await reading.within(missing.start, missing.end, wanted.model)
        windows = await reading.maintenance(missing.start, missing.end, wanted.model)
        room_from = None
        if given.old is None:
            start = max(wanted.start, given.earliest_start)
            room_from = await queries.first_start(reading, replace(wanted, start=start, end=start + given.length))
        shortest = given.old.end if given.old else wanted.start + queries.rules.min_duration
        no_room = NoRoom(
            wanted=wanted,
            stock=queries.inventory.stock()[wanted.model],
            missing=missing,
            bookings=[record for record in records if record.booking.id != wanted.id],
            windows=windows,
            room_from=room_from,
            room_until=missing.start if missing.start > shortest else None,
        )
        return no_room.sentences(queries.zone)

    # --- permissions -------------------------------------------------------------------------------------------------

    def _not_ready(self) -> BookingRefusal | None:
        if self._queries.inventory.is_known:
            return None
        return BookingRefusal(
            RefusalReason.NOT_READY, "The cluster has not been read yet, so the GPUs are not known yet."
        )

    def _not_requestable(self, request: BookingRequest, by: Person) -> BookingRefusal | None:
        return (
            _no_address(request)
            or _two_subjects(request, by)
            or self._not_allowed(request.user, request.reason, by)
            or self._not_ready()
        )

    def _not_allowed(self, user: str, reason: str, by: Person) -> BookingRefusal | None:
        if not by.may_book:
            return BookingRefusal(
                RefusalReason.FORBIDDEN, "This credential may not be used for booking.", hint="carrel login"
            )
        if normal(user) in ("", by.email):
            return None
        if not by.is_lab_admin:
            return BookingRefusal(RefusalReason.FORBIDDEN, "Only a lab admin may act for others.")
        if not reason.strip():
            return BookingRefusal(
                RefusalReason.FORBIDDEN, "To act for another person, give a reason: that person is shown it."
            )
        return None

    async def _found(
        self, reading: SqlReading, id: str, reason: str, by: Person, version: int | None = None
    ) -> BookingRecord | BookingRefusal:
        record = await reading.get(id)
        if record is None:
            return BookingRefusal(RefusalReason.NOT_FOUND, "There is no such booking.", hint=HINT_LIST)
        group = record.booking.group
        refusal = self._not_allowed("" if group else record.booking.user, reason, by)
        if refusal := refusal or await not_manager(reading, group, by):
            return refusal
        if version is not None and version != record.version:
            return BookingRefusal(
                RefusalReason.CHANGED,
                "The booking was changed meanwhile; look at it again.",
                hint=f"carrel show {short_id(id)}",
            )
        return record

    async def _log(self, writing: SqlWriting, action: str, record: BookingRecord, by: Person, why: str) -> None:
        booking = record.booking
        details = {
            "model": booking.model,
            "start": seconds(booking.start),
            "end": seconds(booking.ends if action == "cancelled" else booking.end),
            "gpus": str(booking.gpus),
            "version": str(record.version),
            **({"share": "true"} if booking.share else {}),
            **({"group": booking.group} if booking.group else {}),
        }
        entry = LogEntry(self._queries.now(), by.email, action, booking.user, booking.id, why, details)
        await writing.write_log(entry)


def new_id() -> str:
    """Unique and not guessable."""
    return uuid4().hex


def _why(old: BookingRecord, reason: str, by: Person) -> str:
    return reason if by.email != old.booking.user else old.reason


def _refused(seen: Preview) -> BookingRefusal:
    titles = [problem.title for problem in seen.problems]
    message = titles[0] if len(titles) == 1 else f"{len(titles)} rules are broken"
    return BookingRefusal(RefusalReason.RULES, message, seen.problems, seen.earliest_start, seen.hint)


def _key_reused(key: IdempotencyKey) -> BookingRefusal:
    return BookingRefusal(RefusalReason.KEY_REUSED, f"The key “{key.key}” was used for another request.")


def _no_address(request: BookingRequest) -> BookingRefusal | None:
    """A person signs in by an e-mail address: a booking for anything else could be seen or cancelled by no member."""
    user = normal(request.user)
    if not user or is_address(user) or (request.may_be_user_name and is_user_name(user)):
        return None
    return BookingRefusal(RefusalReason.NO_ADDRESS, f"“{user}” is not an e-mail address such as ada@lab.org.")


def _two_subjects(request: BookingRequest, by: Person) -> BookingRefusal | None:
    if not request.group or normal(request.user) in ("", by.email):
        return None
    return BookingRefusal(RefusalReason.CONTRADICTION, "A booking is for a person or for a group; give one of them.")
