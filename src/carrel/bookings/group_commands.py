"""Groups: who may act for one, and the admin's list of people. Each change of the list is one logged transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.bookings.groups import MOST_ADDRESSES, BookingGroup, GroupRole, is_group_name, read_addresses
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRefusal, LogEntry, RefusalReason
from carrel.bookings.rules import Broken
from carrel.bookings.store.bookings import SqlReading
from carrel.parsing.addresses import is_address, normal


@dataclass(frozen=True, slots=True)
class ListedPeople:
    group: BookingGroup
    changed: tuple[str, ...]
    """Who was added, taken off, or got another role."""
    unchanged: int
    """How many others were as they should be already."""
    stay_managers: tuple[str, ...] = ()
    """Who is on a list of members and is a manager already."""


class GroupCommands:
    def __init__(self, queries: BookingQueries) -> None:
        self._queries = queries

    async def list_person(
        self, group: str, email: str, by: Person, *, is_manager: bool, reason: str = ""
    ) -> BookingGroup | BookingRefusal:
        """Lists a person as a member or a manager. The first one makes the group. Sent again, it changes nothing."""
        user = normal(email)
        if not by.may_list_people:
            return _FORBIDDEN
        if refusal := _not_possible(group, user):
            return refusal
        async with self._queries.store.writing() as writing:
            if await writing.list_in_group(group, user, is_manager=is_manager):
                action = "group-manager" if is_manager else "group-member"
                await writing.write_log(self._entry(action, group, user, by, reason))
            return await writing.group(group)

    async def remove_person(
        self, group: str, email: str, by: Person, reason: str = ""
    ) -> BookingGroup | BookingRefusal:
        """The last one who goes ends the group, unless people are in it by their sign-in. Its bookings stay."""
        user = normal(email)
        if not by.may_list_people:
            return _FORBIDDEN
        async with self._queries.store.writing() as writing:
            if not await writing.unlist_from_group(group, user):
                why = f"{user} is not on the admin's list of the group “{group}”."
                return BookingRefusal(RefusalReason.NOT_FOUND, why)
            await writing.write_log(self._entry("group-removed", group, user, by, reason))
            return await writing.group(group)

    async def list_people(
        self, group: str, lines: Sequence[str], by: Person, role: GroupRole | None, reason: str = ""
    ) -> ListedPeople | BookingRefusal:
        """Lists everybody of a pasted list, or takes them off (`role` None): all of them, or nobody. Who is there
        already is no mistake, and a manager who is on a list of members stays a manager."""
        if not by.may_list_people:
            return _FORBIDDEN
        found = read_addresses(lines)
        problems = [Broken("no-address", mistake, "Not an address") for mistake in found.mistakes]
        if found.more_mistakes:
            problems.append(Broken("no-address", f"{found.more_mistakes:,} more words are no address.", "No addresses"))
        if not is_group_name(group):
            problems.insert(0, Broken("no-group-name", NO_GROUP_NAME, "No name of a group"))
        if not found.emails and not found.mistakes:
            problems.append(Broken("no-address", "The list names nobody.", "Nobody is named"))
        if len(found.emails) > MOST_ADDRESSES:
            why = f"The list has {len(found.emails):,} people; at most {MOST_ADDRESSES:,} are taken at a time."
            problems.append(Broken("too-many", why, "Too many people"))
        if problems:
            count = len(problems) + max(0, found.more_mistakes - 1)  # one of the problems counts these
            title = problems[0].title if count == 1 else f"{count:,} mistakes in the list"
            return BookingRefusal(RefusalReason.LIST, title, tuple(problems))
        changed, stay_managers = [], []
        async with self._queries.store.writing() as writing:
            managers = (await writing.group(group)).managers if role is GroupRole.MEMBER else frozenset[str]()
            for email in found.emails:
                if email in managers:
                    stay_managers.append(email)
                    continue
                is_manager = role is GroupRole.MANAGER
                is_change = (
                    await writing.unlist_from_group(group, email)
                    if role is None
                    else await writing.list_in_group(group, email, is_manager=is_manager)
                )
                if is_change:
                    action = f"group-{role.value}" if role else "group-removed"
                    await writing.write_log(self._entry(action, group, email, by, reason))
                    changed.append(email)
            unchanged = len(found.emails) - len(changed) - len(stay_managers)
            return ListedPeople(await writing.group(group), tuple(changed), unchanged, tuple(stay_managers))

    def _entry(self, action: str, group: str, user: str, by: Person, reason: str) -> LogEntry:
        return LogEntry(self._queries.now(), by.email, action, user, why=reason, details={"group": group})


async def not_bookable(reading: SqlReading, group: str, by: Person) -> BookingRefusal | None:
    """Why this person cannot make a booking for a group; an empty name is no group."""
    refusal = await not_manager(reading, group, by)
    if refusal or not group or (await reading.group(group)).people:
        return refusal
    return BookingRefusal(RefusalReason.NOT_FOUND, f"There is no group “{group}”.")


async def not_manager(reading: SqlReading, group: str, by: Person) -> BookingRefusal | None:
    """Only the group's managers and lab admins act for it. Whether a group exists, others do not learn."""
    if not group or by.is_lab_admin:
        return None
    theirs = await reading.groups_of(by.email)
    if theirs.get(group):
        return None
    why = f"You are a member of the group “{group}”, but" if group in theirs else f"For the group “{group}”"
    managed = ", ".join(f"“{name}”" for name, is_manager in sorted(theirs.items()) if is_manager)
    return BookingRefusal(
        RefusalReason.FORBIDDEN,
        f"{why} only its managers book, change and cancel; a lab admin names them."
        + (f" You manage {managed}." if managed else ""),
        hint="ask a lab admin",
    )


_FORBIDDEN = BookingRefusal(RefusalReason.FORBIDDEN, "Only a lab admin may say who is in a group.")
NO_GROUP_NAME = "A name of 1 to 255 printable characters is expected, and neither “.” nor “..”."


def _not_possible(group: str, user: str) -> BookingRefusal | None:
    if not is_group_name(group):
        return BookingRefusal(RefusalReason.NO_GROUP_NAME, NO_GROUP_NAME)
    if not is_address(user):
        return BookingRefusal(RefusalReason.NO_ADDRESS, f"“{user}” is not an e-mail address such as ada@lab.org.")
    return None
