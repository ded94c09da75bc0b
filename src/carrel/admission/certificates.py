"""The Notary port: makes and reads X.509 certificates. It keeps nothing and reads no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Validity:
    begins: datetime
    ends: datetime


class Unreadable(Exception):
    """That is no certificate, or its key is another's. The message says so and shows neither."""


class Notary(Protocol):
    def authority(self, valid: Validity) -> Pair:
        """One that signed itself, and may sign others."""
        ...

    def issue(self, authority: Pair, names: Sequence[str], valid: Validity) -> Pair:
        """A server's, for these DNS names and IP addresses."""
        ...

    def check(self, pair: Pair) -> Validity:
        """Raises `Unreadable` if it is no certificate with its own key."""
        ...

    def validity(self, certificate: bytes) -> Validity:
        """Raises `Unreadable`."""
        ...

    def is_by(self, certificate: bytes, authority: bytes) -> bool:
        """Whether this authority signed it. Raises `Unreadable`."""
        ...

    def names(self, certificate: bytes) -> frozenset[str]:
        """Raises `Unreadable`."""
        ...

    def split(self, bundle: bytes) -> list[bytes]:
        """The certificates of a bundle, one by one; what is no certificate is left out."""
        ...
