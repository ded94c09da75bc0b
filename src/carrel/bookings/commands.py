"""Books, changes and cancels: each in one serialised transaction that looks, judges, writes and logs.

Who crashes, or loses the answer, may ask again: a wish that carries a name of its own (`IdempotencyKey`) is booked once; a change
may say which version it means; a booking that is cancelled stays cancelled. Nothing is ever deleted.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo

from carrel.bookings.calendar import Maintenance
from carrel.bookings.people import Person, normal
from carrel.bookings.queries import BookingContext, first_start, hash_of
from carrel.bookings.records import (
    BookingRecord,
    BookingRefusal,
    BookingRequest,
    Changes,
    IdempotencyKey,
    LogEntry,
    MaintenanceWindow,
    Preview,
    ReadTransaction,
    RefusalReason,
    State,
    WriteTransaction,
)
from carrel.bookings.rules import (
    END_AFTER_START,
    OVER,
    UNKNOWN_MODEL,
    Booking,
    BookingRules,
    Broken,
    RuleInput,
    earliest_start,
    judge,
    moment,
    others_of,
    words,
)
from carrel.ledger.refusals import Refusal
from carrel.parsing.time import seconds

HINT_FREE, HINT_LIST = "carrel free", "carrel list"


class BookingCommands:
    def __init__(self, context: BookingContext) -> None:
        self.context = context

    # --- making ------------------------------------------------------------------------------------------------------

    async def preview(self, wish: BookingRequest, by: Person) -> Preview | BookingRefusal:
        """What would come of it; always with the first start that would do. Nothing is changed."""
        if no := self._not_allowed(wish.user, wish.reason, by) or self._not_ready():
            return no
        booking = self._understood(wish, by)
        async with self.context.store.reading() as reading:
            seen = await self._judge(reading, booking)
            if seen.problems:
                return seen
            own = await self._own(reading, booking)
            start = earliest_start(own, self.context.now(), self.context.rules)
            moved = replace(booking, start=start, end=start + (booking.end - booking.start))
            return replace(seen, earliest_start=await first_start(self.context, reading, moved))

    async def create(
        self, wish: BookingRequest, by: Person, once: IdempotencyKey | None = None
    ) -> BookingRecord | BookingRefusal:
        if no := self._not_allowed(wish.user, wish.reason, by) or self._not_ready():
            return no
        async with self.context.store.writing() as writing:
            if once is not None and (made := await writing.made_once(by.email, once.key)) is not None:
                return made if made.once == once else _key_reused(once)
            # The clock is read in here: whoever waited for the transaction must not book a start that has passed.
            booking = self._understood(wish, by)
            seen = await self._judge(writing, booking)
            if not seen.is_allowed:
                return _refused(seen)
            record = BookingRecord(
                booking=replace(booking, id=self.context.new_id()),
                created_at=self.context.now(),
                created_by=by.email,
                namespace=wish.namespace,
                note=wish.note,
                reason=wish.reason if booking.user != by.email else "",
                once=once,
            )
            await writing.add(record)
            await self._log(writing, "booked", record, by, wish.reason)
            return record

    # --- changing ----------------------------------------------------------------------------------------------------

    async def preview_change(self, id: str, changes: Changes, by: Person) -> Preview | BookingRefusal:
        async with self.context.store.reading() as reading:
            old = await self._found(reading, id, changes.reason, by)
            return old if isinstance(old, BookingRefusal) else await self._judge_change(reading, old, changes)

    async def change(
        self, id: str, changes: Changes, by: Person, version: int | None = None
    ) -> BookingRecord | BookingRefusal:
        """Extends, shortens or moves. With a version: only if it is still that one."""
        if no := self._not_ready():
            return no
        async with self.context.store.writing() as writing:
            old = await self._found(writing, id, changes.reason, by, version)
            if isinstance(old, BookingRefusal):
                return old
            seen = await self._judge_change(writing, old, changes)
            if not seen.is_allowed:
                return _refused(seen)
            note = old.note if changes.note is None else changes.note
            if (seen.wish, note) == (old.booking, old.note):
                return old
            why = _why(old, changes.reason, by)
            new = replace(old, booking=seen.wish, note=note, version=old.version + 1, reason=why)
            await writing.replace(new)
            await self._log(writing, "changed", new, by, changes.reason)
            return new

    async def cancel(
        self, id: str, by: Person, reason: str = "", version: int | None = None
    ) -> BookingRecord | BookingRefusal:
        """A planned one never was; a running one ends now, and its cooldown begins. Doing it twice does it once."""
        async with self.context.store.writing() as writing:
            old = await self._found(writing, id, reason, by, version)
            if isinstance(old, BookingRefusal):
                return old
            now = self.context.now()
            if old.booking.cancelled_at is not None:
                return old
            if old.state(now) is State.ENDED:
                over = OVER.broken(f"This booking ended {moment(old.booking.ends, self.context.zone)}.")
                return BookingRefusal(RefusalReason.RULES, over.title, (over,), hint=HINT_LIST)
            booking = replace(old.booking, cancelled_at=now)
            new = replace(old, booking=booking, version=old.version + 1, reason=_why(old, reason, by))
            await writing.replace(new)
            await self._log(writing, "cancelled", new, by, reason)
            return new

    def after_cancelling(self, record: BookingRecord) -> str:
        """What follows, in one sentence, for who is about to cancel."""
        now, cooldown = self.context.now(), self.context.rules.cooldown
        if record.booking.is_planned(now):
            return "Cancelling now gives the cards back, and no cooldown follows: the booking has not begun."
        if not record.booking.is_active(now):
            return "It is over; there is nothing to cancel."
        if not cooldown:
            return "Cancelling now ends it at once."
        following = moment(now + cooldown, self.context.zone)
        return f"Cancelling now starts the cooldown of {words(cooldown)} today: the next may start {following}."

    # --- maintenance and feeds ---------------------------------------------------------------------------------------

    async def add_maintenance(self, asked: Maintenance, why: str, by: Person) -> MaintenanceWindow | BookingRefusal:
        """Bookings in that time stay, and show as overbooked; new ones are refused."""
        if no := _not_admin(by):
            return no
        model = self.context.model(asked.model)
        problems = [UNKNOWN_MODEL.broken(str(model))] if isinstance(model, Refusal) else []
        if asked.end <= asked.start:
            problems.append(END_AFTER_START.broken("The end must be after the start."))
        if problems or isinstance(model, Refusal):
            return BookingRefusal(RefusalReason.RULES, problems[0].title, tuple(problems), hint=HINT_FREE)
        window = MaintenanceWindow(self.context.new_id(), replace(asked, model=model), why, by.email)
        async with self.context.store.writing() as writing:
            await writing.add_maintenance(window)
            await writing.write_log(_maintenance_entry("maintenance-added", window, by, self.context.now()))
        return window

    async def remove_maintenance(self, id: str, by: Person) -> MaintenanceWindow | BookingRefusal:
        if no := _not_admin(by):
            return no
        async with self.context.store.writing() as writing:
            window = await writing.remove_maintenance(id)
            if window is None:
                return BookingRefusal(RefusalReason.NOT_FOUND, "There is no such maintenance window.")
            await writing.write_log(_maintenance_entry("maintenance-removed", window, by, self.context.now()))
            return window

    async def make_feed(self, by: Person) -> str:
        """A new secret address of the person's calendar; the old one works no longer."""
        secret = self.context.new_id() + self.context.new_id()
        await self._set_feed(by, hash_of(secret), "feed-made")
        return secret

    async def revoke_feed(self, by: Person) -> None:
        await self._set_feed(by, None, "feed-revoked")

    async def _set_feed(self, by: Person, secret_hash: str | None, action: str) -> None:
        async with self.context.store.writing() as writing:
            await writing.set_feed(by.email, secret_hash)
            await writing.write_log(LogEntry(self.context.now(), by.email, action, subject=by.email))

    # --- judging -----------------------------------------------------------------------------------------------------

    def _understood(self, wish: BookingRequest, by: Person) -> Booking:
        start = wish.start or self.context.now()
        end = start + wish.end if isinstance(wish.end, timedelta) else wish.end
        model = self.context.model(wish.model)
        return Booking(
            id="",
            user=normal(wish.user) or by.email,
            model=wish.model if isinstance(model, Refusal) else model,
            start=start,
            end=end,
            cards=wish.cards,
            share=wish.share,
        )

    async def _judge(self, reading: ReadTransaction, wanted: Booking) -> Preview:
        return await self._judge_with_room(reading, await self._input(reading, wanted))

    async def _judge_change(self, reading: ReadTransaction, record: BookingRecord, changes: Changes) -> Preview:
        old = record.booking
        new = replace(
            old, start=changes.start or old.start, end=changes.end or old.end, cards=changes.cards or old.cards
        )
        given = await self._input(reading, new, old)
        if given.is_over or (given.is_shorter and new.cards <= old.cards):
            verdict = judge(given)  # it needs no room that it does not have already
            return Preview(new, verdict.broken, verdict.earliest_start, HINT_LIST if verdict.broken else "")
        seen = await self._judge_with_room(reading, given)
        return replace(seen, hint=f"carrel show {old.id}" if seen.problems else "")

    async def _input(self, reading: ReadTransaction, wanted: Booking, old: Booking | None = None) -> RuleInput:
        own = others_of(wanted.id, await self._own(reading, wanted))
        return RuleInput(wanted, own, self.context.now(), self.context.rules, self.context.zone, old)

    async def _own(self, reading: ReadTransaction, wanted: Booking) -> list[Booking]:
        """The person's bookings that a rule may still look at."""
        since = self.context.now() - self.context.rules.cooldown
        return [record.booking for record in await reading.of_person(wanted.user, since)]

    async def _judge_with_room(self, reading: ReadTransaction, given: RuleInput) -> Preview:
        """All rules, those about models and capacity included."""
        wanted, context = given.booking, self.context
        model = context.model(wanted.model)
        if isinstance(model, Refusal):
            return Preview(wanted, judge(replace(given, unknown_model=str(model))).broken, None, HINT_FREE)
        calendar = await context.calendar(reading, model, wanted.start, max(wanted.start, wanted.end), but=wanted.id)
        verdict = judge(replace(given, shortage=calendar.shortage(wanted)))
        if not verdict.broken:
            return Preview(wanted, (), wanted.start)  # no need to read the bookings that lie ahead
        length = max(context.rules.min_duration, min(given.length, context.rules.max_duration))
        legal = replace(wanted, start=verdict.earliest_start, end=verdict.earliest_start + length)
        earliest = await first_start(context, reading, legal)
        return Preview(wanted, verdict.broken, earliest, hint_for(legal, verdict.broken, earliest, context))

    # --- who may -----------------------------------------------------------------------------------------------------

    def _not_ready(self) -> BookingRefusal | None:
        if self.context.inventory.is_known:
            return None
        return BookingRefusal(
            RefusalReason.NOT_READY, "The cluster has not been read yet, so nobody knows which cards there are."
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
                RefusalReason.FORBIDDEN, "Who acts for another says why: that person is shown the reason."
            )
        return None

    async def _found(
        self, reading: ReadTransaction, id: str, reason: str, by: Person, version: int | None = None
    ) -> BookingRecord | BookingRefusal:
        record = await reading.get(id)
        if record is None:
            return BookingRefusal(RefusalReason.NOT_FOUND, "There is no such booking.", hint=HINT_LIST)
        if no := self._not_allowed(record.booking.user, reason, by):
            return no
        if version is not None and version != record.version:
            return BookingRefusal(
                RefusalReason.CHANGED, "The booking was changed meanwhile; look at it again.", hint=f"carrel show {id}"
            )
        return record

    async def _log(self, writing: WriteTransaction, action: str, record: BookingRecord, by: Person, why: str) -> None:
        booking = record.booking
        details = {
            "model": booking.model,
            "start": seconds(booking.start),
            "end": seconds(booking.ends if action == "cancelled" else booking.end),
            "cards": str(booking.cards),
        }
        entry = LogEntry(self.context.now(), by.email, action, booking.user, booking.id, why, details)
        await writing.write_log(entry)


def hint_for(legal: Booking, problems: tuple[Broken, ...], earliest: datetime | None, context: BookingContext) -> str:
    """A command that would work; or one that shows why none would."""
    only_new = {row.name for row in context.rules.rows if row.only_new}
    if any(problem.rule in only_new for problem in problems):
        return HINT_LIST
    if earliest is None or any(problem.rule == "shares" for problem in problems):
        return HINT_FREE
    words_ = ["carrel book", legal.model.lower(), f"--days {days_of(legal.end - legal.start, context.rules)}"]
    if legal.cards > 1:
        words_.append(f"--gpus {legal.cards}")
    if legal.share:
        words_.append("--share")
    if earliest > context.now():
        words_.append(f"--from {from_option(earliest, context.zone)}")
    return " ".join(words_)


def days_of(length: timedelta, rules: BookingRules) -> str:
    """In days, rounded to what a person would type, without leaving what the rules allow."""
    whole = max(1, round(length / timedelta(days=1)))
    if rules.min_duration <= timedelta(days=whole) <= rules.max_duration:
        return str(whole)
    return f"{length / timedelta(days=1):g}"


def from_option(start: datetime, zone: tzinfo) -> str:
    """A date where it is midnight in the lab; else an instant with its offset, not before `start`."""
    full = start if start == start.replace(second=0) else start.replace(second=0) + timedelta(minutes=1)
    local = full.astimezone(zone)
    return local.strftime("%Y-%m-%d") if (local.hour, local.minute) == (0, 0) else local.isoformat(timespec="minutes")


def _why(old: BookingRecord, reason: str, by: Person) -> str:
    return reason if by.email != old.booking.user else old.reason


def _refused(seen: Preview) -> BookingRefusal:
    titles = [problem.title for problem in seen.problems]
    message = titles[0] if len(titles) == 1 else f"{len(titles)} rules are broken"
    return BookingRefusal(RefusalReason.RULES, message, seen.problems, seen.earliest_start, seen.hint)


def _key_reused(once: IdempotencyKey) -> BookingRefusal:
    return BookingRefusal(RefusalReason.KEY_REUSED, f"The key “{once.key}” was used for another request.")


def _not_admin(by: Person) -> BookingRefusal | None:
    return None if by.is_lab_admin else BookingRefusal(RefusalReason.FORBIDDEN, "Only a lab admin may do this.")


def _maintenance_entry(action: str, window: MaintenanceWindow, by: Person, now: datetime) -> LogEntry:
    m = window.maintenance
    details = {"model": m.model, "start": seconds(m.start), "end": seconds(m.end), "cards": str(m.cards)}
    return LogEntry(now.astimezone(UTC), by.email, action, why=window.why, details=details)
