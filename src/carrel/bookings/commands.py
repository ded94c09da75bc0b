"""Books, changes and cancels: each in one serialised transaction that looks, judges, writes and logs.

Who crashes, or loses the answer, may ask again: a wish that carries a name of its own (`Once`) is booked once; a change
may say which version it means; a booking that is cancelled stays cancelled. Nothing is ever deleted.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo

from carrel.bookings.calendar import Maintenance
from carrel.bookings.people import Person, normal
from carrel.bookings.queries import Lab, first_start, hash_of
from carrel.bookings.records import (
    BookingRecord,
    Changes,
    LogEntry,
    No,
    Once,
    Preview,
    Reading,
    Reason,
    State,
    Window,
    Wish,
    Writing,
)
from carrel.bookings.rules import Booking, Broken, Rules, Verdict, check, check_change, earliest_start, moment, words
from carrel.ledger.refusals import Refusal
from carrel.parsing.time import seconds

HINT_FREE, HINT_LIST = "carrel free", "carrel list"
UNPLANNABLE = frozenset({"no-active-overlap", "future-limit"})
"""Rules that no other start would heal."""


class Bookings:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    # --- making ------------------------------------------------------------------------------------------------------

    async def preview(self, wish: Wish, by: Person) -> Preview | No:
        """What would come of it; always with the first start that would do. Nothing is changed."""
        if no := self._not_allowed(wish.user, wish.reason, by) or self._not_ready():
            return no
        booking = self._understood(wish, by)
        async with self.lab.store.reading() as reading:
            seen = await self._judge(reading, booking)
            if seen.problems:
                return seen
            own = await self._own(reading, booking)
            start = earliest_start(own, self.lab.now(), self.lab.rules)
            moved = replace(booking, start=start, end=start + (booking.end - booking.start))
            return replace(seen, earliest_start=await first_start(self.lab, reading, moved))

    async def create(self, wish: Wish, by: Person, once: Once | None = None) -> BookingRecord | No:
        if no := self._not_allowed(wish.user, wish.reason, by) or self._not_ready():
            return no
        async with self.lab.store.writing() as writing:
            if once is not None and (made := await writing.made_once(by.email, once.key)) is not None:
                return made if made.once == once else _key_reused(once)
            # The clock is read in here: whoever waited for the transaction must not book a start that has passed.
            booking = self._understood(wish, by)
            seen = await self._judge(writing, booking)
            if not seen.is_allowed:
                return _refused(seen)
            record = BookingRecord(
                booking=replace(booking, id=self.lab.new_id()),
                created_at=self.lab.now(),
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

    async def preview_change(self, id: str, changes: Changes, by: Person) -> Preview | No:
        async with self.lab.store.reading() as reading:
            old = await self._found(reading, id, changes.reason, by)
            return old if isinstance(old, No) else await self._judge_change(reading, old, changes)

    async def change(self, id: str, changes: Changes, by: Person, version: int | None = None) -> BookingRecord | No:
        """Extends, shortens or moves. With a version: only if it is still that one."""
        if no := self._not_ready():
            return no
        async with self.lab.store.writing() as writing:
            old = await self._found(writing, id, changes.reason, by, version)
            if isinstance(old, No):
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

    async def cancel(self, id: str, by: Person, reason: str = "", version: int | None = None) -> BookingRecord | No:
        """A planned one never was; a running one ends now, and its cooldown begins. Doing it twice does it once."""
        async with self.lab.store.writing() as writing:
            old = await self._found(writing, id, reason, by, version)
            if isinstance(old, No):
                return old
            now = self.lab.now()
            if old.booking.cancelled_at is not None:
                return old
            if old.state(now) is State.ENDED:
                over = Broken("over", f"This booking ended {moment(old.booking.ends, self.lab.zone)}.")
                return No(Reason.RULES, over.title, (over,), hint=HINT_LIST)
            booking = replace(old.booking, cancelled_at=now)
            new = replace(old, booking=booking, version=old.version + 1, reason=_why(old, reason, by))
            await writing.replace(new)
            await self._log(writing, "cancelled", new, by, reason)
            return new

    def after_cancelling(self, record: BookingRecord) -> str:
        """What follows, in one sentence, for who is about to cancel."""
        now, cooldown = self.lab.now(), self.lab.rules.cooldown
        if record.booking.is_planned(now):
            return "Cancelling now gives the cards back, and no cooldown follows: the booking has not begun."
        if not record.booking.is_active(now):
            return "It is over; there is nothing to cancel."
        if not cooldown:
            return "Cancelling now ends it at once."
        following = moment(now + cooldown, self.lab.zone)
        return f"Cancelling now starts the cooldown of {words(cooldown)} today: the next may start {following}."

    # --- maintenance and feeds ---------------------------------------------------------------------------------------

    async def add_maintenance(self, asked: Maintenance, why: str, by: Person) -> Window | No:
        """Bookings in that time stay, and show as overbooked; new ones are refused."""
        if no := _not_admin(by):
            return no
        model = self.lab.model(asked.model)
        problems = [Broken("unknown-model", str(model))] if isinstance(model, Refusal) else []
        if asked.end <= asked.start:
            problems.append(Broken("end-after-start", "The end must be after the start."))
        if problems or isinstance(model, Refusal):
            return No(Reason.RULES, problems[0].title, tuple(problems), hint=HINT_FREE)
        window = Window(self.lab.new_id(), replace(asked, model=model), why, by.email)
        async with self.lab.store.writing() as writing:
            await writing.add_maintenance(window)
            await writing.write_log(_maintenance_entry("maintenance-added", window, by, self.lab.now()))
        return window

    async def remove_maintenance(self, id: str, by: Person) -> Window | No:
        if no := _not_admin(by):
            return no
        async with self.lab.store.writing() as writing:
            window = await writing.remove_maintenance(id)
            if window is None:
                return No(Reason.NOT_FOUND, "There is no such maintenance window.")
            await writing.write_log(_maintenance_entry("maintenance-removed", window, by, self.lab.now()))
            return window

    async def make_feed(self, by: Person) -> str:
        """A new secret address of the person's calendar; the old one works no longer."""
        secret = self.lab.new_id() + self.lab.new_id()
        await self._set_feed(by, hash_of(secret), "feed-made")
        return secret

    async def revoke_feed(self, by: Person) -> None:
        await self._set_feed(by, None, "feed-revoked")

    async def _set_feed(self, by: Person, secret_hash: str | None, action: str) -> None:
        async with self.lab.store.writing() as writing:
            await writing.set_feed(by.email, secret_hash)
            await writing.write_log(LogEntry(self.lab.now(), by.email, action, subject=by.email))

    # --- judging -----------------------------------------------------------------------------------------------------

    def _understood(self, wish: Wish, by: Person) -> Booking:
        start = wish.start or self.lab.now()
        end = start + wish.end if isinstance(wish.end, timedelta) else wish.end
        model = self.lab.model(wish.model)
        return Booking(
            id="",
            user=normal(wish.user) or by.email,
            model=wish.model if isinstance(model, Refusal) else model,
            start=start,
            end=end,
            cards=wish.cards,
            share=wish.share,
        )

    async def _judge(self, reading: Reading, wish: Booking) -> Preview:
        own = await self._own(reading, wish)
        verdict = check(wish, own, self.lab.now(), self.lab.rules, self.lab.zone)
        return await self._with_room(reading, wish, verdict)

    async def _judge_change(self, reading: Reading, record: BookingRecord, changes: Changes) -> Preview:
        old = record.booking
        new = replace(
            old, start=changes.start or old.start, end=changes.end or old.end, cards=changes.cards or old.cards
        )
        own = await self._own(reading, old)
        verdict = check_change(old, new, own, self.lab.now(), self.lab.rules, self.lab.zone)
        is_over = not (old.is_planned(self.lab.now()) or old.is_active(self.lab.now()))
        if is_over or (old.start <= new.start and new.end <= old.end and new.cards <= old.cards):
            return Preview(new, verdict.broken, verdict.earliest_start, HINT_LIST if verdict.broken else "")
        seen = await self._with_room(reading, new, verdict)
        return replace(seen, hint=f"carrel show {old.id}" if seen.problems else "")

    async def _own(self, reading: Reading, wish: Booking) -> list[Booking]:
        """The person's bookings that a rule may still look at."""
        since = self.lab.now() - self.lab.rules.cooldown
        return [record.booking for record in await reading.of_person(wish.user, since)]

    async def _with_room(self, reading: Reading, wish: Booking, verdict: Verdict) -> Preview:
        """Adds what the calendar says to what the rules say."""
        model = self.lab.model(wish.model)
        if isinstance(model, Refusal):
            unknown = Broken("unknown-model", str(model))
            return Preview(wish, (*verdict.broken, unknown), None, HINT_FREE)
        calendar = await self.lab.calendar(reading, model, wish.start, max(wish.start, wish.end), but=wish.id)
        problems = (*verdict.broken, *calendar.check(wish))
        if not problems:
            return Preview(wish, (), wish.start)  # everything ahead need not be looked at
        length = max(self.lab.rules.min_duration, min(wish.end - wish.start, self.lab.rules.max_duration))
        not_before = verdict.earliest_start
        legal = replace(wish, start=not_before, end=not_before + length)
        earliest = await first_start(self.lab, reading, legal)
        return Preview(wish, problems, earliest, hint_for(legal, problems, earliest, self.lab))

    # --- who may -----------------------------------------------------------------------------------------------------

    def _not_ready(self) -> No | None:
        if self.lab.inventory.is_known:
            return None
        return No(Reason.NOT_READY, "The cluster has not been read yet, so nobody knows which cards there are.")

    def _not_allowed(self, user: str, reason: str, by: Person) -> No | None:
        if not by.may_book:
            return No(Reason.FORBIDDEN, "This credential may not be used for booking.", hint="carrel login")
        if normal(user) in ("", by.email):
            return None
        if not by.is_lab_admin:
            return No(Reason.FORBIDDEN, "Only a lab admin may act for others.")
        if not reason.strip():
            return No(Reason.FORBIDDEN, "Who acts for another says why: that person is shown the reason.")
        return None

    async def _found(
        self, reading: Reading, id: str, reason: str, by: Person, version: int | None = None
    ) -> BookingRecord | No:
        record = await reading.get(id)
        if record is None:
            return No(Reason.NOT_FOUND, "There is no such booking.", hint=HINT_LIST)
        if no := self._not_allowed(record.booking.user, reason, by):
            return no
        if version is not None and version != record.version:
            return No(Reason.CHANGED, "The booking was changed meanwhile; look at it again.", hint=f"carrel show {id}")
        return record

    async def _log(self, writing: Writing, action: str, record: BookingRecord, by: Person, why: str) -> None:
        booking = record.booking
        details = {
            "model": booking.model,
            "start": seconds(booking.start),
            "end": seconds(booking.ends if action == "cancelled" else booking.end),
            "cards": str(booking.cards),
        }
        entry = LogEntry(self.lab.now(), by.email, action, booking.user, booking.id, why, details)
        await writing.write_log(entry)


def hint_for(legal: Booking, problems: tuple[Broken, ...], earliest: datetime | None, lab: Lab) -> str:
    """A command that would work; or one that shows why none would."""
    if any(problem.rule in UNPLANNABLE for problem in problems):
        return HINT_LIST
    if earliest is None or any(problem.rule == "shares" for problem in problems):
        return HINT_FREE
    words_ = ["carrel book", legal.model.lower(), f"--days {days_of(legal.end - legal.start, lab.rules)}"]
    if legal.cards > 1:
        words_.append(f"--cards {legal.cards}")
    if legal.share:
        words_.append("--share")
    if earliest > lab.now():
        words_.append(f"--from {from_option(earliest, lab.zone)}")
    return " ".join(words_)


def days_of(length: timedelta, rules: Rules) -> str:
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


def _refused(seen: Preview) -> No:
    titles = [problem.title for problem in seen.problems]
    message = titles[0] if len(titles) == 1 else f"{len(titles)} rules are broken"
    return No(Reason.RULES, message, seen.problems, seen.earliest_start, seen.hint)


def _key_reused(once: Once) -> No:
    return No(Reason.KEY_REUSED, f"The key “{once.key}” was used for another request.")


def _not_admin(by: Person) -> No | None:
    return None if by.is_lab_admin else No(Reason.FORBIDDEN, "Only a lab admin may do this.")


def _maintenance_entry(action: str, window: Window, by: Person, now: datetime) -> LogEntry:
    m = window.maintenance
    details = {"model": m.model, "start": seconds(m.start), "end": seconds(m.end), "cards": str(m.cards)}
    return LogEntry(now.astimezone(UTC), by.email, action, why=window.why, details=details)
