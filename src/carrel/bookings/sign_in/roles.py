"""Who has which role: by the settings, by the groups that an identity provider names, and by what an admin granted."""

from collections.abc import Iterable
from dataclasses import dataclass

from carrel.bookings.people import Role, normal

SERVICE_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class RoleBook:
    """Addresses and groups, as the settings name them."""

    lab_admins: frozenset[str] = frozenset()
    platform_admins: frozenset[str] = frozenset()
    lab_admin_groups: frozenset[str] = frozenset()
    platform_admin_groups: frozenset[str] = frozenset()
    member_groups: frozenset[str] = frozenset()
    """If there are any, only people in one of them are members."""
    services: frozenset[str] = frozenset()
    """Kubernetes names of Carrel's own processes, such as `system:serviceaccount:carrel:webhook`."""

    def by_groups(self, groups: Iterable[str]) -> frozenset[Role]:
        """What an identity provider's word is worth."""
        theirs = frozenset(groups)
        roles = {
            Role.MEMBER: not self.member_groups or bool(theirs & self.member_groups),
            Role.LAB_ADMIN: bool(theirs & self.lab_admin_groups),
            Role.PLATFORM_ADMIN: bool(theirs & self.platform_admin_groups),
        }
        return frozenset(role for role, has in roles.items() if has)

    def by_name(self, email: str, granted: Role | None = None) -> frozenset[Role]:
        """What the settings and an admin's grant give, looked up at each call: taken away, it is gone at once."""
        roles = {granted} if granted else set[Role]()
        if normal(email) in {normal(each) for each in self.lab_admins}:
            roles.add(Role.LAB_ADMIN)
        if normal(email) in {normal(each) for each in self.platform_admins}:
            roles.add(Role.PLATFORM_ADMIN)
        return frozenset(roles)
