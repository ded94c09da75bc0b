"""Which roles a person has: from the settings, from the groups of the identity provider, and from grants."""

from collections.abc import Iterable
from dataclasses import dataclass

from carrel.bookings.people import Role
from carrel.parsing.addresses import normal

SERVICE_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class RoleOptions:
    """The e-mail addresses and groups that the settings name."""

    lab_admins: frozenset[str] = frozenset()
    platform_admins: frozenset[str] = frozenset()
    lab_admin_groups: frozenset[str] = frozenset()
    platform_admin_groups: frozenset[str] = frozenset()
    member_groups: frozenset[str] = frozenset()
    """If there are any, only people in one of these groups are members."""
    services: frozenset[str] = frozenset()
    """Kubernetes names of Carrel's own processes, such as `system:serviceaccount:carrel:webhook`."""
    hubs: frozenset[str] = frozenset()
    """Kubernetes names of the hubs that start pods for people."""

    def by_account(self, username: str) -> frozenset[Role]:
        """The roles of a ServiceAccount. It has none unless the settings name it."""
        roles = {Role.SERVICE: username in self.services, Role.HUB: username in self.hubs}
        return frozenset(role for role, has in roles.items() if has)

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
