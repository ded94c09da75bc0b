"""Prometheus and promtool, from Debian's package. Nothing is installed or built."""

from pathlib import Path

from testbed import debian
from testbed.tools import cache


def prometheus() -> Path:
    return _program("prometheus")


def promtool() -> Path:
    return _program("promtool")


def _program(name: str) -> Path:
    root = cache() / "prometheus"
    debian.unpack(["prometheus"], root)
    return root / "usr/bin" / name
