"""Who somebody is, what they may do, and what the service needs to remember about people.

A person is known by an e-mail address, in lower case: it is what a booking belongs to and what the cluster's user
names are matched with. Secrets (sessions, tokens) are never stored: only their SHA-256, which suffices because they
are random and 256 bits long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol


class Role(Enum):
    """What a person is to the lab. Each includes those above it; a service is only a service."""

    MEMBER = "member"
    """Books for themselves and sees everything that is not secret."""
    LAB_ADMIN = "lab-admin"
    """Acts for others, with a reason; sets maintenance; reads usage and the audit log."""
    PLATFORM_ADMIN = "platform-admin"
    """Also changes rules and roles."""
    SERVICE = "service"
    """A process of Carrel's own, such as the webhook: asks about anybody's booking, books nothing."""


class Scope(Enum):
    """What a credential may be used for, at most; a session may be used for everything its person may do."""

    READ = "read"
    BOOK = "book"
    """Also make, change and cancel one's own bookings."""
    ADMIN = "admin"
    """Also what the person's role allows beyond that."""


class How(Enum):
    """By which credential somebody was recognised."""

    SESSION = "session"
    TOKEN = "token"  # noqa: S105 # a word, not a secret
    SERVICE_ACCOUNT = "serviceaccount"
    """Kubernetes vouched for them, be it a ServiceAccount or a user."""
    DEV = "dev"


USES_ARE_KNOWN_TO = timedelta(hours=1)
LONGEST_ADDRESS = 254
ALL_SCOPES = frozenset(Scope)
_RANKS = {Role.MEMBER: 0, Role.LAB_ADMIN: 1, Role.PLATFORM_ADMIN: 2}


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who was recognised, for one call."""

    email: str
    name: str = ""
    """What to call them; else the address."""
    roles: frozenset[Role] = frozenset({Role.MEMBER})
    how: How = How.SESSION
    scopes: frozenset[Scope] = ALL_SCOPES

    @property
    def title(self) -> str:
        return self.name or self.email

    def is_at_least(self, role: Role) -> bool:
        """By rank, and only as far as this credential reaches."""
        reached = max((_RANKS.get(each, -1) for each in self.roles), default=-1)
        return reached >= _RANKS[role] and (role is Role.MEMBER or Scope.ADMIN in self.scopes)

    @property
    def is_lab_admin(self) -> bool:
        """May act for others, with a reason."""
        return self.is_at_least(Role.LAB_ADMIN)

    @property
    def is_platform_admin(self) -> bool:
        return self.is_at_least(Role.PLATFORM_ADMIN)

    @property
    def is_service(self) -> bool:
        return Role.SERVICE in self.roles

    @property
    def may_book(self) -> bool:
        return Scope.BOOK in self.scopes and self.is_at_least(Role.MEMBER)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that signed in."""

    email: str
    name: str
    roles: frozenset[Role]
    """What the identity provider's groups gave at sign-in; what Carrel itself grants is looked up at each call."""
    how: How
    began: datetime
    expires: datetime


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """What a browser brings from its person to a command line. It is used once."""

    facts: Mapping[str, str]
    expires: datetime


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token of our own. The secret is shown once, when it is made, and cannot be found out from this."""

    id: str
    email: str
    label: str
    scopes: frozenset[Scope]
    created: datetime
    expires: datetime
    roles: frozenset[Role] = frozenset()
    """What the maker's identity provider gave them then. Who loses them there is signed out everywhere here."""
    how: How = How.SESSION
    """How its maker was recognised: what was said for trying it is worth nothing once that is over."""
    last_used: datetime | None = None
    """To the hour: to know it better, every call would have to write."""
    revoked: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.revoked is None and now < self.expires

    def is_use_to_be_noted(self, now: datetime) -> bool:
        return self.last_used is None or now - self.last_used >= USES_ARE_KNOWN_TO


@dataclass(frozen=True, slots=True)
class KnownPerson:
    """Somebody who has been here."""

    email: str
    name: str = ""
    granted: Role | None = None
    """By a platform admin, beside what settings and groups give."""
    last_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """A role that a platform admin gives to somebody; None takes it away."""

    email: str
    role: Role | None
    by: str
    why: str
    at: datetime


class People(Protocol):
    """What is remembered about people. Implemented by `adapters.store`."""

    async def begin_login(self, secret_hash: str, errand: PendingLogin) -> None: ...

    async def take_login(self, secret_hash: str, now: datetime) -> PendingLogin | None:
        """Removes it: of two who bring the same secret, at most one gets it. An expired one is not given."""
        ...

    async def use_once(self, secret_hash: str, until: datetime) -> bool:
        """True for the first who brings it; it is remembered until then."""
        ...

    async def begin_session(self, secret_hash: str, session: Session) -> None:
        """Also remembers the person."""
        ...

    async def session(self, secret_hash: str, now: datetime) -> Session | None: ...

    async def end_session(self, secret_hash: str) -> None: ...

    async def sign_out_everywhere(self, email: str, now: datetime) -> int:
        """Ends a person's sessions and revokes their tokens; says how many of both. Their feed ends, too."""
        ...

    async def add_token(self, secret_hash: str, token: Token) -> None: ...

    async def token(self, secret_hash: str, now: datetime) -> Token | None:
        """Only if it is valid."""
        ...

    async def tokens_of(self, email: str) -> Sequence[Token]:
        """Also those that expired or were revoked, newest first."""
        ...

    async def revoke_token(self, email: str, token_id: str, now: datetime) -> bool:
        """False if this person has none of that id."""
        ...

    async def granted(self, email: str) -> Role | None: ...

    async def grant(self, grant: Grant) -> None:
        """It is written in the log, in the same transaction."""
        ...

    async def known(self) -> Sequence[KnownPerson]: ...

    async def forget_expired(self, now: datetime) -> int:
        """Sessions and errands whose time is over; says how many."""
        ...


def is_address(email: str) -> bool:
    """Whether it can be a person's: what is longer, or invisible, only looks like one."""
    name, at, host = email.partition("@")
    is_plain = email.isprintable() and not any(letter.isspace() for letter in email)
    return bool(name and at and host) and "@" not in host and is_plain and len(email) <= LONGEST_ADDRESS


def normal(email: str) -> str:
    """Addresses are compared in lower case: providers disagree about case, and people do not know it matters."""
    return email.strip().lower()
