"""Groups that share bookings: who is in them, and who books for them. Pure.

A group is a project or a course. Its people come from two places: an admin's list, which also names the managers, and
the groups that identity providers tell when people sign in. A group is known by its name in both, exactly as written.
Managers book, change and cancel for the group, and lab admins always may; every member uses the GPUs.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from carrel.parsing.addresses import is_address, normal

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


@dataclass(frozen=True, slots=True)
class AddressList:
    """What a pasted list says."""

    emails: tuple[str, ...]
    """In lower case, each once, in the order of the list."""
    mistakes: tuple[str, ...] = ()
    """The first ones, each with the number of its line."""
    more_mistakes: int = 0


def read_addresses(lines: Sequence[str]) -> AddressList:
    """Read one address or several in each line, separated by commas, semicolons or spaces, also as `Ada <ada@lab.org>`.
    Empty lines and those that begin with # say nothing."""
    emails: dict[str, None] = {}
    mistakes, more = list[str](), 0
    for number, line in enumerate(lines, 1):
        text = line.replace("\ufeff", "").strip()
        if text.startswith("#"):
            continue
        for word in _written_addresses(text):
            email = normal(word.strip("\"'"))
            if is_address(email):
                emails[email] = None
            elif len(mistakes) == MOST_MISTAKES:
                more += 1
            else:
                mistakes.append(
                    f"Line {number}: “{word[:LONGEST_SHOWN]}” is not an e-mail address such as ada@lab.org."
                )
    return AddressList(tuple(emails), tuple(mistakes), more)


_PART = re.compile(r"""<[^<>]*>|"[^"]*"|[,;]|[^\s,;<"]+|[<"]""")


def _written_addresses(line: str) -> list[str]:
    """Return all words of the line but the names: those right before an address in angle brackets, in quotes or without
    an @."""
    words = list[str]()
    for part in _PART.findall(line):
        if part.startswith("<") and part.endswith(">"):
            if words and words[-1].startswith('"'):
                words.pop()
            while words and not {"@", ",", ";", ">"} & {*words[-1]}:
                words.pop()
        words.append(part)
    bare = " ".join(word[1:-1] or word if word.startswith("<") and word.endswith(">") else word for word in words)
    return [word for word in re.split(r"[,;\s]+", bare) if word.strip("\"'")]


LONGEST_SHOWN = 80
MOST_MISTAKES = 50
"""That are written out. Who pastes the wrong thing, as a whole table, need not read each of its lines."""
MOST_ADDRESSES = 2000
"""In one list."""


def is_group_name(text: str) -> bool:
    """Providers write `vision`, `/lab/vision` or `Vision Team`. Control characters only look like another name, and no
    address of a group can end with dots: browsers and clients take them for a step up."""
    return text.strip() == text and text.isprintable() and 0 < len(text) <= LONGEST_NAME and text not in (".", "..")


def groups_to_keep(told: Collection[str]) -> frozenset[str]:
    """Those of the groups that a provider told which can be groups of bookings."""
    usable = sorted(each for each in set(told) if is_group_name(each) and not each.startswith(OF_THE_CLUSTER))
    return frozenset(usable[:MOST_SEEN])
