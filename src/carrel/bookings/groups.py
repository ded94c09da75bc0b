"""Groups that share bookings: who is in them, and who books for them. Pure.

A group is a project or a course. Its people come from two places: an admin's list, which also names the managers, and
the groups that identity providers tell when people sign in. A group is known by its name in both, exactly as written.
Managers book, change and cancel for the group, and lab admins always may; every member uses the GPUs.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

LONGEST_NAME = 255
SEEN_COUNTS = timedelta(days=90)
"""How long a group that was seen at a sign-in counts. Who left the lab does not sign in any more, so the provider never
tells us. As long as a token lives by default: who works with a token signs in that often."""
SEEN_PRECISION = timedelta(hours=1)
"""How exact the time is at which a group was last seen: otherwise every call would have to write."""
MOST_SEEN = 1000
"""Groups of one person that are kept. Providers have limits of a few hundred."""
OF_THE_CLUSTER = "system:"
"""Kubernetes gives such groups to everybody, for example `system:authenticated`."""


class GroupSource(Enum):
    """Who told a person's groups. Each may name the same group differently, so that one does not replace the other."""

    IDENTITY_PROVIDER = "oidc"
    CLUSTER = "cluster"
    HUB = "jupyterhub"


class GroupRole(Enum):
    """What a person is in a group."""

    MEMBER = "member"
    MANAGER = "manager"
    """Also books, changes and cancels for the group."""


@dataclass(frozen=True, slots=True)
class GroupPerson:
    """A person of a group."""

    email: str
    is_manager: bool = False
    listed: bool = True
    """An admin listed the person; otherwise the group was seen at a sign-in."""
    seen_at: datetime | None = None
    """When the group was last seen at a sign-in."""

    @property
    def role(self) -> GroupRole:
        return GroupRole.MANAGER if self.is_manager else GroupRole.MEMBER


@dataclass(frozen=True, slots=True)
class BookingGroup:
    name: str
    people: tuple[GroupPerson, ...] = ()
    """In the order of their addresses. Empty: there is no such group."""

    @property
    def members(self) -> frozenset[str]:
        """Managers included."""
        return frozenset(person.email for person in self.people)

    @property
    def managers(self) -> frozenset[str]:
        return frozenset(person.email for person in self.people if person.is_manager)


def group_of(name: str, people: Iterable[GroupPerson]) -> BookingGroup:
    """A person who is both listed and seen at a sign-in is there once."""
    merged: dict[str, GroupPerson] = {}
    for person in people:
        known = merged.get(person.email, person)
        seen = [each.seen_at for each in (known, person) if each.seen_at is not None]
        merged[person.email] = GroupPerson(
            person.email,
            known.is_manager or person.is_manager,
            known.listed or person.listed,
            max(seen, default=None),
        )
    return BookingGroup(name, tuple(merged[email] for email in sorted(merged)))


def is_group_name(text: str) -> bool:
    """Providers write `vision`, `/lab/vision` or `Vision Team`. Control characters only look like another name."""
    return bool(text) and text == text.strip() and text.isprintable() and len(text) <= LONGEST_NAME


def groups_to_keep(told: Collection[str]) -> frozenset[str]:
    """Those of the groups that a provider told which can be groups of bookings."""
    usable = sorted(each for each in set(told) if is_group_name(each) and not each.startswith(OF_THE_CLUSTER))
    return frozenset(usable[:MOST_SEEN])
