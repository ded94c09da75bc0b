"""The files by which a container runtime gives the GPUs of a claim to a container: one for each prepared claim.

They have the format of the Container Device Interface (CDI). One device of such a file stands for all GPUs of the
claim: what a container sees is one variable, and a second device would overwrite it. The files also are the record of
which claims are prepared, so that an agent which is started again knows it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carrel.dialects.carrel import LEASE_GPU
from carrel.resource_claims.dra import CDI_FILE, CDI_KIND

CDI_VERSION = "0.6.0"
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}", re.ASCII)


def device_id(uid: str) -> str:
    return f"{CDI_KIND}={uid}"


class ClaimFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, uid: str, gpus: Sequence[str], variables: Mapping[str, str]) -> None:
        """`gpus`: of which the claim is a user; with admin access it is none. Raises `OSError`. The runtime reads files
        at any moment, so a file appears as a whole."""
        device = {
            "name": uid,
            "annotations": {LEASE_GPU: ",".join(gpus)},
            "containerEdits": {"env": [f"{name}={value}" for name, value in variables.items()]},
        }
        content = {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": [device]}
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".{CDI_FILE}{uid}.new"
        new.write_text(json.dumps(content))
        new.replace(self._file(uid))

    def remove(self, uid: str) -> None:
        """Raises `OSError`."""
        if _UID.fullmatch(uid):
            self._file(uid).unlink(missing_ok=True)

    def prepared(self) -> dict[str, tuple[str, ...]]:
        """uid of a claim → the UUIDs of its GPUs. A file that cannot be read has none: it is somebody else's."""
        found = {}
        for path in sorted(self._folder.glob(f"{CDI_FILE}*.json")):
            uid = path.stem.removeprefix(CDI_FILE)
            found[uid] = _gpus_in(path)
        return {uid: gpus for uid, gpus in found.items() if gpus}

    def _file(self, uid: str) -> Path:
        if not _UID.fullmatch(uid):
            raise OSError(f"{uid!r} is no uid")  # it becomes a part of a path
        return self._folder / f"{CDI_FILE}{uid}.json"


def _gpus_in(path: Path) -> tuple[str, ...]:
    try:
        content: Any = json.loads(path.read_text())
        return tuple(filter(None, content["devices"][0]["annotations"][LEASE_GPU].split(",")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ()
