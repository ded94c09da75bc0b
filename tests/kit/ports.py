"""Ports for programs that bind them seconds later."""

import secrets
import socket
from contextlib import suppress

BELOW = range(12000, 20000)
"""Below those of the test beds, and those that Linux gives to outgoing connections (32768 and up)."""


def free_ports(count: int) -> list[int]:
    """Different ones, which nobody listens on now."""
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(BELOW)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)


def free_port() -> int:
    return free_ports(1)[0]
