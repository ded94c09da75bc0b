"""Groups: who may act for one, and the admin's list of people. Each change of the list is one logged transaction."""

from carrel.bookings.groups import BookingGroup, is_group_name
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRefusal, LogEntry, RefusalReason
from carrel.bookings.store.bookings import SqlReading
from carrel.parsing.addresses import is_address, normal


class GroupCommands:
    def __init__(self, queries: BookingQueries) -> None:
        self._queries = queries

    async def list_person(
        self, group: str, email: str, by: Person, *, is_manager: bool, reason: str = ""
    ) -> BookingGroup | BookingRefusal:
        """Lists a person as a member or a manager. The first one makes the group. Sent again, it changes nothing."""
        user = normal(email)
        if refusal := _not_admin(by) or _not_possible(group, user):
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
        if refusal := _not_admin(by):
            return refusal
        async with self._queries.store.writing() as writing:
            if not await writing.unlist_from_group(group, user):
                why = f"{user} is not on the admin's list of the group “{group}”."
                return BookingRefusal(RefusalReason.NOT_FOUND, why)
            await writing.write_log(self._entry("group-removed", group, user, by, reason))
            return await writing.group(group)

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


def _not_admin(by: Person) -> BookingRefusal | None:
    if by.is_lab_admin:
        return None
    return BookingRefusal(RefusalReason.FORBIDDEN, "Only a lab admin may say who is in a group.")


def _not_possible(group: str, user: str) -> BookingRefusal | None:
    if not is_group_name(group):
        return BookingRefusal(RefusalReason.NO_GROUP_NAME, "A name of 1 to 255 printable characters is expected.")
    if not is_address(user):
        return BookingRefusal(RefusalReason.NO_ADDRESS, f"“{user}” is not an e-mail address such as ada@lab.org.")
    return None
