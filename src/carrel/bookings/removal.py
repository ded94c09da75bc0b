"""Removes a person: what they have here ends, in one transaction, and is shown before.

Bookings that they made for a group are the group's and stay. No pod is ended, and those that hold a GPU are named:
without a booking they may lose it to somebody who has one. What others keep about the person stays, too: the identity
provider may let them in again, and the configuration may name them as admin. The log keeps what they did.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.bookings.commands import PERSON_REMOVED, BookingCommands
from carrel.bookings.people import CredentialCount, Person, Role, RoleOptions
from carrel.bookings.queries import FOREVER, BookingQueries
from carrel.bookings.records import BookingRecord, BookingRefusal, LogEntry, RefusalReason, State
from carrel.bookings.store.bookings import SqlReading
from carrel.parsing.addresses import is_address, normal


@dataclass(frozen=True, slots=True)
class PersonHas:
    """What a person has, and what of it a removal ends."""

    email: str
    credentials: CredentialCount
    bookings: Sequence[BookingRecord]
    """Their own that are active or planned: they are cancelled."""
    groups: Sequence[str]
    """Whose lists they are taken off; groups that a sign-in told are forgotten."""
    group_bookings: Sequence[BookingRecord] = ()
    """Made by them for a group: these stay."""
    configured: Sequence[Role] = ()
    """Roles that the configuration gives: these stay until it is changed."""
    pods: Sequence[str] = ()
    """Their pods that hold a GPU now: these run on, without a booking."""

    @property
    def is_anything(self) -> bool:
        has = self.credentials
        return bool(self.bookings or self.groups or has.sessions or has.tokens or has.has_feed or has.is_known)

    @property
    def ends(self) -> list[str]:
        """What ends, in words."""
        has, active = self.credentials, sum(each.booking.cancelled_at is None for each in self.bookings)
        counted = [
            (active, "booking"),
            (has.sessions, "session"),
            (has.tokens, "token"),
            (int(has.has_feed), "calendar feed"),
        ]
        found = [f"{count} {what}{'s' * (count != 1)}" for count, what in counted if count]
        found += [f"the place in the group {group}" for group in self.groups]
        return found + ([f"the role {has.granted}"] if has.granted else [])


class PersonRemoval:
    def __init__(self, queries: BookingQueries, commands: BookingCommands, roles: RoleOptions) -> None:
        self._queries = queries
        self._commands = commands
        self._roles = roles

    async def preview(self, email: str, by: Person) -> PersonHas | BookingRefusal:
        if refusal := _not_possible(email, by):
            return refusal
        async with self._queries.store.reading() as reading:
            return await self._found(reading, normal(email), self._queries.now())

    async def remove(self, email: str, by: Person, reason: str) -> PersonHas | BookingRefusal:
        """All of it or nothing. Who is removed already has nothing, which is no mistake."""
        if refusal := _not_possible(email, by):
            return refusal
        if not reason.strip():
            return BookingRefusal(RefusalReason.FORBIDDEN, "To remove a person, give a reason: they are shown it.")
        async with self._queries.store.writing() as writing:
            now = self._queries.now()
            has = await self._found(writing, normal(email), now)
            for record in has.bookings:
                await self._commands.cancel_in(writing, record, by, reason)
            await writing.forget_person(has.email, now)
            if has.is_anything:
                details = {"ended": ", ".join(has.ends)}
                await writing.write_log(LogEntry(now, by.email, PERSON_REMOVED, has.email, "", reason, details))
            return has

    async def _found(self, reading: SqlReading, email: str, now: datetime) -> PersonHas:
        own = [each for each in await reading.of(email, "", now) if _is_ahead(each, now)]
        groups = sorted(await reading.groups_of(email))
        theirs = [
            record
            for record in await reading.within(now, FOREVER)
            if record.booking.group and record.booking.user == email and _is_ahead(record, now)
        ]
        configured = sorted(self._roles.by_email(email), key=lambda role: role.value)
        pods = [pod.name for pod in self._queries.inventory.pods_of(email)]
        return PersonHas(email, await reading.credentials(email, now), own, groups, theirs, configured, pods)


def _is_ahead(record: BookingRecord, now: datetime) -> bool:
    return record.state(now) in (State.PLANNED, State.ACTIVE)


def _not_possible(email: str, by: Person) -> BookingRefusal | None:
    if not by.may_remove_people:
        return BookingRefusal(RefusalReason.FORBIDDEN, "Only a platform admin may remove people.")
    if not is_address(normal(email)):
        return BookingRefusal(RefusalReason.NO_ADDRESS, f"“{email}” is not an e-mail address such as ada@lab.org.")
    if normal(email) == by.email:
        return BookingRefusal(RefusalReason.FORBIDDEN, "You cannot remove yourself; another platform admin can.")
    return None
