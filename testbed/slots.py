"""Which ports and addresses a test bed uses, so that any number of them run side by side.

A slot is claimed by binding an abstract socket: the kernel knows one of each name and frees it when we end, however
we end.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from testbed.tools import Missing

RANGE = IPv4Network("198.18.0.0/15")
"""Reserved for network tests by RFC 2544: never routed."""
FIRST_PORT = 21000
"""Below the ports that Linux gives to outgoing connections (32768 and up)."""
PORTS = 16
SLOTS = RANGE.num_addresses // 512


@dataclass(frozen=True)
class Slot:
    number: int

    @property
    def ports(self) -> range:
        return range(FIRST_PORT + self.number * PORTS, FIRST_PORT + (self.number + 1) * PORTS)

    @property
    def services(self) -> IPv4Network:
        """The addresses of Services."""
        return self._network(0)

    @property
    def pods(self) -> IPv4Network:
        """The addresses of pods: the lower half of the slot's second /24."""
        return next(self._network(1).subnets())

    @property
    def machine_address(self) -> IPv4Address:
        """This machine, as the real node sees it."""
        return self._network(1)[253]

    @property
    def node_address(self) -> IPv4Address:
        """The real node, as this machine sees it."""
        return self._network(1)[254]

    def _network(self, index: int) -> IPv4Network:
        return IPv4Network((RANGE[(self.number * 2 + index) * 256], 24))


@contextmanager
def claim() -> Iterator[Slot]:
    """A slot that no other test bed has, whose ports are free now."""
    # Each process looks from a place of its own, so that a slot that was just given up is not the next to be taken:
    # who looks for what was left behind there finds nobody else's.
    for number in range(SLOTS):
        slot = Slot((number + os.getpid()) % SLOTS)
        with socket.socket(socket.AF_UNIX) as claimed:
            try:
                claimed.bind(f"\0carrel-testbed/{slot.number}")
            except OSError:
                continue
            if all(map(_is_free, slot.ports)):
                yield slot
                return
    raise Missing("free ports: every test bed slot is taken. See what runs: python -m testbed status")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
