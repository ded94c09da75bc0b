"""The programs of a cluster, built once from Go modules: minutes the first time, nothing afterwards.

Each folder below `modules` pins one set of programs: go.mod names them and their version, go.sum has the hash of
everything that they are made of. What is built lies in a folder of the same name in the cache, so that releases of
Kubernetes lie side by side. A build that was cut short goes on where it was, because Go keeps what it has fetched and
compiled; a second process waits for the first.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import compiler, golang
from testbed.tools import Missing, assets, cache, locked, say

MODULES = Path(__file__).parent / "modules"
RELEASE = "1.37.1"
"""The Kubernetes of the tests, unless $KUBERNETES names another release."""
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")
PROGRESS_SECONDS = 15


@dataclass(frozen=True)
class Programs:
    """What is built from one pinned module."""

    name: str
    """Its folder below `modules`, and in the cache."""
    tags: tuple[str, ...] = ()
    """Parts that are left out, because they need a C library."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Where the usual name of the program is not that of its Go package."""
    is_in_c: bool = False
    """Whether parts of it are, which call a library that is found when it runs."""

    @property
    def pin(self) -> Path:
        return MODULES / self.name

    @property
    def folder(self) -> Path:
        return cache() / "bin" / self.name


ETCD = Programs("etcd-3.6.5", renamed=(("server", "etcd"),))
CONTAINERD = Programs("containerd-2.2.1", tags=("no_btrfs", "no_devmapper", "no_zfs"))
CNI_PLUGINS = Programs("cni-1.9.0")
CONTAINER_TOOLKIT = Programs("nvidia-container-toolkit-1.20.1", is_in_c=True)


def release() -> str:
    """The release of Kubernetes that is asked for, such as 1.37.1."""
    return os.environ.get("KUBERNETES", "").removeprefix("v") or RELEASE


def kubernetes() -> Programs:
    programs = Programs(f"kubernetes-{release()}")
    if not programs.pin.is_dir():
        known = sorted(folder.name.removeprefix("kubernetes-") for folder in MODULES.glob("kubernetes-*"))
        raise Missing(
            f"Kubernetes {release()} is not pinned here; pinned: {', '.join(known)}. "
            f"To pin it: python -m testbed pin {release()}"
        )
    return programs


def component(name: str) -> Path:
    """A program of Kubernetes: from $KUBEBUILDER_ASSETS if all of them are there, else built."""
    given = assets(*KUBERNETES)
    return given[name] if given else built(kubernetes()) / name


def etcd() -> Path:
    given = assets("etcd")
    return given["etcd"] if given else built(ETCD) / "etcd"


def built(programs: Programs) -> Path:
    """The folder with these programs; builds them if they are not there yet."""
    if not programs.folder.exists():
        with locked("build"):
            if not programs.folder.exists():
                _build(programs)
    return programs.folder


def prepare() -> None:
    """All that the tests need. Gigabytes that only the build needed are deleted at the end."""
    wanted: list[Programs] = [CONTAINERD, CNI_PLUGINS, CONTAINER_TOOLKIT]
    if not assets(*KUBERNETES):
        wanted.insert(0, kubernetes())
    if not assets("etcd"):
        wanted.append(ETCD)
    for programs in wanted:
        built(programs)
    with locked("build"):
        if _work().exists():
            say("removing what only the build needed")
            shutil.rmtree(_work())


def _work() -> Path:
    return cache() / "build"


def _build(programs: Programs) -> None:
    began = time.monotonic()
    say(f"building {programs.name} from Go modules; this takes minutes, once")
    text = (programs.pin / "go.mod").read_text()
    language = re.search(r"^go (\S+)$", text, re.MULTILINE)
    assert language is not None, f"{programs.pin / 'go.mod'} does not say which Go it needs"
    go = golang.go(language[1])
    # Made in a folder of its own, and renamed as a whole: whoever sees the folder finds all of the programs in it.
    draft = _work() / programs.name
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    options = ["-trimpath", "-tags", ",".join(programs.tags), "-ldflags", _ldflags(programs), "-o", f"{draft}/"]
    _compile(go, programs, options)
    for made, known in programs.renamed:
        (draft / made).rename(draft / known)
    programs.folder.parent.mkdir(exist_ok=True)
    draft.rename(programs.folder)
    say(f"{programs.name} is built ({_elapsed(began)}) and kept in {programs.folder}")


def _compile(go: Path, programs: Programs, options: Sequence[str]) -> None:
    """`go build` with low priority, and a line of progress at intervals."""
    pin, environment = programs.pin, go_environment() | (compiler.environment() if programs.is_in_c else {})
    _run(go, pin, "mod", "download")
    packages = _run(go, pin, "list", "-deps", "tool").count("\n")
    began = spoke = time.monotonic()
    compiled, lines = 0, list[str]()
    # A compiler that outlived us would go on writing where the next build, which has the lock by then, writes too.
    command = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "10", str(go), "build", "-v", *options, "tool"]
    with subprocess.Popen(command, cwd=pin, env=environment, stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr is not None
        for line in build.stderr:
            compiled += bool(re.fullmatch(r"[\w./-]+\n", line))
            lines = [*lines[-40:], line]
            if time.monotonic() - spoke > PROGRESS_SECONDS:
                spoke = time.monotonic()
                say(f"compiled {compiled} of at most {packages} packages ({_elapsed(began)})")
    if build.returncode != 0:
        raise Missing(f"go build in {pin} failed:\n{''.join(lines)}")


def _run(go: Path, pin: Path, *words: str) -> str:
    outcome = subprocess.run([go, *words], cwd=pin, env=go_environment(), capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise Missing(f"go {' '.join(words)} in {pin} failed:\n{outcome.stderr.strip()[-2000:]}")
    return outcome.stdout


def go_environment() -> dict[str, str]:
    """The machine's own settings, such as where modules come from, except those that would change the program."""
    return os.environ | {
        "CGO_ENABLED": "0",
        # Without -modcacherw, Go makes its folders read-only, and nobody could remove them.
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOCACHE": str(_work() / "compiled"),
        "GOMODCACHE": str(_work() / "modules"),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _ldflags(programs: Programs) -> str:
    """Sets the version of Kubernetes: without it, clients see v0.0.0-master and Helm refuses to work."""
    kind, _, version = programs.name.rpartition("-")
    # Lazy: what the driver's library lacks is missed only when it is called.
    in_c = ["-extldflags=-Wl,-z,lazy"] if programs.is_in_c else []
    return " ".join(["-s", "-w", *in_c, *(_version_flags(version) if kind == "kubernetes" else ())])


def _version_flags(version: str) -> Iterable[str]:
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        for name, value in values.items():
            yield f"-X {package}.{name}={value}"


def _elapsed(began: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{minutes}:{seconds:02} min"
