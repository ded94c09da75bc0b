"""Which person a user of a JupyterHub is. Bookings are made under e-mail addresses; most hubs have short user names.

In this order: the hub's admin has listed the name; it is an address already; it is a name of the domain that is given
for all others. A name that matches nobody stays as it is, and an admin is told which option is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from carrel.parsing.addresses import is_address, normal
from carrel.parsing.malformed import Malformed


@dataclass(frozen=True, slots=True)
class HubPeople:
    domain: str = ""
    """`ada` is `ada@<domain>`. Empty: only listed names and addresses are people."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Hub user → address."""

    def person_of(self, user: str) -> str:
        """The name under which the user books."""
        name = normal(user)
        if listed := self.addresses.get(name):
            return listed
        of_domain = f"{name}@{self.domain}"
        return of_domain if self.domain and "@" not in name and is_address(of_domain) else name

    def matches(self, user: str) -> bool:
        """Whether the user is a person with an address. If not, only a booking under the short name is theirs."""
        return is_address(self.person_of(user))


def read_addresses(content: Any, where: str) -> dict[str, str]:
    """Of a file that maps names to addresses: `ada: ada.lovelace@lab.example`."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise Malformed(where, "the file", content, "a mapping of hub users to addresses")
    found = {}
    for user, address in content.items():
        if not isinstance(address, str) or not is_address(normal(address)):
            raise Malformed(where, str(user), address, "an e-mail address")
        found[normal(str(user))] = normal(address)
    return found
