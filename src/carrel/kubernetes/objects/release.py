"""Which releases of Kubernetes Carrel runs on. `docs/compatibility.md` explains why."""

from collections.abc import Mapping
from typing import Any

from carrel.parsing.malformed import Malformed

Release = tuple[int, int]

OLDEST: Release = (1, 33)
"""The first release whose API server can do everything that Carrel needs."""


def read_release(version: Mapping[str, Any]) -> Release:
    """Reads the answer of an API server to GET /version. Raises `Malformed`."""
    # Hosted servers write the minor version as `35+`.
    parts = [str(version.get(part, "")).rstrip("+") for part in ("major", "minor")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise Malformed("the API server", "version", dict(version), "a major and a minor number, as in 1 and 37")
    return int(parts[0]), int(parts[1])


def why_unsupported(release: Release) -> str:
    """Empty if Carrel runs there. There is no newest release: Kubernetes keeps the API versions that we use."""
    if release >= OLDEST:
        return ""
    return f"the API server is Kubernetes {_written(release)}; Carrel needs {_written(OLDEST)} or newer"


def _written(release: Release) -> str:
    return ".".join(map(str, release))
