"""JupyterHub's word for who a pod belongs to, and which person that user is.

    annotation   hub.jupyter.org/username   the name as it is (KubeSpawner ≥ 7, and some before)
    label        hub.jupyter.org/username   the name escaped: every byte but a–z and 0–9 is `-XX`, in hex

Neither proves who the user is: any author of a pod can write both. Believe them only in a request that a configured
spawner's ServiceAccount made.

Bookings are made under e-mail addresses; most hubs have short user names. In this order: the hub's admin has listed the
name; it is an address already; it is a name of the domain that is given for all others. A name that matches nobody
stays as it is, and an admin is told which option is missing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.malformed import Malformed

USERNAME = "hub.jupyter.org/username"

_EXPECTED = "a name escaped as KubeSpawner does: -40 for @, -2d for -, -2e for ."
_ESCAPE = re.compile(rb"-([0-9a-fA-F]{2})?")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")


def is_of_a_hub(pod: Pod) -> bool:
    """Whether it says that a hub made it: who writes that on another pod gets a notebook's treatment, no more."""
    return USERNAME in pod.metadata.annotations or USERNAME in pod.metadata.labels


def username_of(pod: Pod) -> str:
    """Empty if the pod names nobody. The annotation goes first: the label may be a slug that cannot be read back."""
    where = subject(pod.metadata)
    if raw := pod.metadata.annotations.get(USERNAME, ""):
        return _presentable(raw, where, annotation_field(USERNAME), "a name of printable characters")
    return unescape(pod.metadata.labels.get(USERNAME, ""), where, f"metadata.labels['{USERNAME}']")


def unescape(label: str, where: str, field: str) -> str:
    """In one pass, on bytes: replacing one escape after another makes `alice@kth.se` of somebody's `alice-40kth.se`."""
    try:
        escaped = label.encode()
        if any(match.group(1) is None for match in _ESCAPE.finditer(escaped)):
            raise Malformed(where, field, label, _EXPECTED)
        name = _ESCAPE.sub(lambda match: bytes([int(match.group(1), 16)]), escaped).decode()
    except UnicodeError:
        raise Malformed(where, field, label, f"{_EXPECTED}, of UTF-8 bytes") from None
    return _presentable(name, where, field, _EXPECTED)


def escape(name: str) -> str:
    """The label as KubeSpawner < 7 writes it."""
    return "".join(chr(byte) if byte in _PLAIN else f"-{byte:02x}" for byte in name.encode())


def _presentable(name: str, where: str, field: str, expected: str) -> str:
    # The name ends up in logs, pages and database keys.
    if not name.isprintable():
        raise Malformed(where, field, name, expected)
    return name


# --- which person it is ----------------------------------------------------------------------------------------------


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
