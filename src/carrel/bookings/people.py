"""Who a person is, what they may do, and what the service stores about people.

A person is identified by an e-mail address in lower case (`parsing.addresses`): a booking belongs to it, and the
cluster's user names are matched with it. Secrets (sessions, tokens) are never stored, only their SHA-256; that is
enough because they are random and 256 bits long.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from zoneinfo import ZoneInfo

from carrel.bookings.notifications.choices import MessageChoices
from carrel.parsing.addresses import normal


class Role(Enum):
    """What a person may do in the lab. Each role includes those above it, except the last."""

    MEMBER = "member"
    """Makes own bookings and sees everything that is not secret."""
    LAB_ADMIN = "lab-admin"
    """Acts for others, with a reason; sets maintenance; reads usage and the audit log."""
    PLATFORM_ADMIN = "platform-admin"
    """Also changes rules and roles."""
    HUB = "hub"
    """A JupyterHub, which starts pods for its users: asks what they may start, and nothing else."""


class Scope(Enum):
    """What a credential may be used for at most. A session may be used for everything that its person may do."""

    READ = "read"
    BOOK = "book"
    """Also make, change and cancel own bookings."""
    ADMIN = "admin"
    """Also everything else that the person's role allows."""


class How(Enum):
    """The kind of credential by which a person was recognised."""

    SESSION = "session"
    TOKEN = "token"  # noqa: S105 # a word, not a secret
    SERVICE_ACCOUNT = "serviceaccount"
    """A token that Kubernetes confirmed, of a ServiceAccount or a user."""
    HUB = "hub"
    """A token of its own users that JupyterHub confirmed, such as that of a notebook server."""
    DEV = "dev"


LAST_USE_PRECISION = timedelta(hours=1)
ALL_SCOPES = frozenset(Scope)
_RANKS = {Role.MEMBER: 0, Role.LAB_ADMIN: 1, Role.PLATFORM_ADMIN: 2}


@dataclass(frozen=True, slots=True)
class Person:
    """The caller of one request."""

    email: str
    name: str = ""
    """For display; if empty, the address is shown."""
    roles: frozenset[Role] = frozenset({Role.MEMBER})
    how: How = How.SESSION
    scopes: frozenset[Scope] = ALL_SCOPES
    zone: ZoneInfo | None = None
    """In which they want to see times; None: in the lab's."""
    groups: frozenset[str] | None = None
    """That this credential names; None: it names none, and those that were seen before still count."""

    @property
    def title(self) -> str:
        return self.name or self.email

    def is_at_least(self, role: Role) -> bool:
        """Whether the person has that role or a higher one, and only as far as this credential may be used."""
        reached = max((_RANKS.get(each, -1) for each in self.roles), default=-1)
        return reached >= _RANKS[role] and (role is Role.MEMBER or Scope.ADMIN in self.scopes)

    @property
    def is_lab_admin(self) -> bool:
        """May act for others, with a reason."""
        return self.is_at_least(Role.LAB_ADMIN)

    def may_see_figures_of(self, people: Collection[str]) -> bool:
        """Whether they may see figures of what these people use GPUs for: how many hours, and how busy.

        Their own always, also beside others who share a GPU with them; a lab admin everybody's. Of a GPU that nobody
        holds, everybody. Whether a GPU is active or idle is no figure: everybody sees that where the names of its
        holders are, as on the map.
        """
        return self.may_see_everybodys_figures or not people or self.email in people

    @property
    def may_see_everybodys_figures(self) -> bool:
        """Others see of the rest only sums of everybody together."""
        return self.is_lab_admin

    @property
    def may_list_people(self) -> bool:
        """May say who is in a group."""
        return self.is_lab_admin

    @property
    def may_remove_people(self) -> bool:
        return self.is_platform_admin

    @property
    def may_set_maintenance(self) -> bool:
        return self.is_lab_admin

    @property
    def is_platform_admin(self) -> bool:
        return self.is_at_least(Role.PLATFORM_ADMIN)

    @property
    def is_hub(self) -> bool:
        return Role.HUB in self.roles

    @property
    def may_book(self) -> bool:
        return Scope.BOOK in self.scopes and self.is_at_least(Role.MEMBER)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser in which a person signed in."""

    email: str
    name: str
    roles: frozenset[Role]
    """From the identity provider's groups at sign-in; roles that Carrel itself grants are looked up at each call."""
    how: How
    began: datetime
    expires: datetime


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A login on a command line that its person has allowed in a browser, and that was not completed yet. Used once."""

    facts: Mapping[str, str]
    expires: datetime


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token of our own. Its secret is shown once, when it is made, and is not stored."""

    id: str
    email: str
    label: str
    scopes: frozenset[Scope]
    created: datetime
    expires: datetime
    roles: frozenset[Role] = frozenset()
    """From the identity provider when the token was made. Who loses them there is signed out everywhere here."""
    how: How = How.SESSION
    """How its owner was recognised: a token that was made in `--dev` is not valid without it."""
    last_used: datetime | None = None
    """To the hour: otherwise every call would have to write."""
    revoked: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.revoked is None and now < self.expires

    def is_use_to_be_noted(self, now: datetime) -> bool:
        return self.last_used is None or now - self.last_used >= LAST_USE_PRECISION


@dataclass(frozen=True, slots=True)
class KnownPerson:
    """A person who has signed in or has a role."""

    email: str
    name: str = ""
    granted: Role | None = None
    """The role that a platform admin has given, in addition to settings and groups."""
    last_seen: datetime | None = None
    zone: ZoneInfo | None = None
    """That they chose; None: the lab's."""
    messages: MessageChoices = field(default_factory=MessageChoices)
    """How they want to be told things."""


@dataclass(frozen=True, slots=True)
class CredentialCount:
    """What a person has here, besides bookings and groups."""

    sessions: int
    tokens: int
    has_feed: bool
    is_known: bool
    """Signed in once, or has a role."""
    granted: str
    """The role that a platform admin has given; empty: none."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A role that a platform admin gives to a person; None takes it away."""

    email: str
    role: Role | None
    by: str
    why: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RoleOptions:
    """The e-mail addresses and groups that the settings name."""

    lab_admins: frozenset[str] = frozenset()
    platform_admins: frozenset[str] = frozenset()
    lab_admin_groups: frozenset[str] = frozenset()
    platform_admin_groups: frozenset[str] = frozenset()
    member_groups: frozenset[str] = frozenset()
    """If there are any, only people in one of these groups are members."""
    hubs: frozenset[str] = frozenset()
    """Kubernetes names of the hubs that start pods for people."""

    def by_account(self, username: str) -> frozenset[Role]:
        """The roles of a ServiceAccount. It has none unless the settings name it."""
        return frozenset({Role.HUB}) if username in self.hubs else frozenset()

    def by_groups(self, groups: Iterable[str]) -> frozenset[Role]:
        """The roles that the groups of the identity provider give."""
        theirs = frozenset(groups)
        roles = {
            Role.MEMBER: not self.member_groups or bool(theirs & self.member_groups),
            Role.LAB_ADMIN: bool(theirs & self.lab_admin_groups),
            Role.PLATFORM_ADMIN: bool(theirs & self.platform_admin_groups),
        }
        return frozenset(role for role, has in roles.items() if has)

    def by_email(self, email: str, granted: Role | None = None) -> frozenset[Role]:
        """The roles from the settings and from a grant. Looked up at each request, so that a removal counts at once."""
        roles = {granted} if granted else set[Role]()
        if normal(email) in {normal(each) for each in self.lab_admins}:
            roles.add(Role.LAB_ADMIN)
        if normal(email) in {normal(each) for each in self.platform_admins}:
            roles.add(Role.PLATFORM_ADMIN)
        return frozenset(roles)
