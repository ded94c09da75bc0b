"""Kubernetes itself, built once from the source package of Debian 12: minutes the first time, nothing afterwards.

Everything is made in one folder of the cache, which goes when the binaries are ready. A build that was cut short goes
on where it was, because Go keeps what it compiled; a second process waits for the first.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from testbed import debian
from testbed.tools import Missing, cache, find, locked, say

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
VERSION = "v1.20.2"
COMPILER = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
TREE = Path("gopath/src/k8s.io/kubernetes")
OPENAPI = "k8s.io/kubernetes/pkg/generated/openapi"
PROGRESS_SECONDS = 15


def kubernetes(*names: str) -> dict[str, Path]:
    """These components of Kubernetes; builds them all if no place has them."""
    if found := find(*names):
        return found
    with locked("kubernetes"):
        if find(*names) is None:
            _build(cache() / "build")
    found = find(*names)
    assert found is not None, f"the build of Kubernetes did not make all of {', '.join(names)}"
    return found


def _build(work: Path) -> None:
    began = time.monotonic()
    say(f"building Kubernetes {VERSION} from Debian's source package; this takes minutes, once")
    debian.unpack(COMPILER, work / "compiler")
    tree = work / TREE
    if not tree.exists():
        _unpack_source(work)
    _replace_reflect2(work)
    say("generating the API's OpenAPI description")
    _generate_openapi(work)
    binaries = work / "bin"
    binaries.mkdir(exist_ok=True)
    commands = [f"./cmd/{name}" for name in KUBERNETES]
    _compile(work, ["-ldflags", _ldflags(), "-o", f"{binaries}/", *commands])
    (cache() / "bin").mkdir(exist_ok=True)
    for name in KUBERNETES:
        (binaries / name).rename(cache() / "bin" / name)
    # Go makes the folders of its module cache read-only; there is none in GOPATH mode, so this removes everything.
    shutil.rmtree(work)
    say(f"Kubernetes {VERSION} is built ({_elapsed(began)}) and kept in {cache() / 'bin'}")


def _unpack_source(work: Path) -> None:
    say("fetching the source of Kubernetes")
    archive = debian.source("kubernetes", work / "source")
    halfway = work / "unpacking"
    shutil.rmtree(halfway, ignore_errors=True)
    halfway.mkdir()
    subprocess.run(["tar", "--extract", "--strip-components=1", "--file", archive, "--directory", halfway], check=True)
    (work / TREE).parent.mkdir(parents=True, exist_ok=True)
    halfway.rename(work / TREE)


def _replace_reflect2(work: Path) -> None:
    """The vendored reflect2 1.0.1 reads Go's map iterator as it was before 1.18: the API server dies after minutes."""
    vendored = work / TREE / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(work / "compiler/usr/share/gocode/src/github.com/modern-go/reflect2", vendored)


def _generate_openapi(work: Path) -> None:
    """Upstream's releases hold this file as a product of the build; the source package does not."""
    tree = work / TREE
    packages = set()
    for top, prefix in ((tree / "pkg", "k8s.io/kubernetes/pkg"), (tree / "staging/src", "k8s.io/kubernetes/vendor")):
        for file in top.rglob("*.go"):
            if "+k8s:openapi-gen=true" in file.read_text():
                packages.add(f"{prefix}/{file.parent.relative_to(top)}")
    generator = work / "openapi-gen"
    _compile(work, ["-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"])
    command = [str(generator), "--output-file-base", "zz_generated.openapi", "--output-package", OPENAPI]
    command += ["--go-header-file", "hack/boilerplate/boilerplate.generatego.txt", "--report-filename", "/dev/null"]
    command += ["--input-dirs", ",".join(sorted(packages))]
    outcome = subprocess.run(command, cwd=tree, env=_go_environment(work), capture_output=True, text=True, check=False)
    if outcome.returncode != 0 or not (tree / "pkg/generated/openapi/zz_generated.openapi.go").exists():
        raise Missing(f"openapi-gen made nothing:\n{outcome.stderr[-2000:]}")


def _compile(work: Path, arguments: Sequence[str]) -> None:
    """`go build`, with a line of progress now and then. It is nice to whoever else works on this machine."""
    go = str(work / "compiler/usr/lib/go-1.19/bin/go")
    tree, environment = work / TREE, _go_environment(work)
    targets = [argument for argument in arguments if argument.startswith("./")]
    counting = [go, "list", "-deps", *targets]
    total = subprocess.check_output(counting, cwd=tree, env=environment, text=True).count("\n")
    began = spoke = time.monotonic()
    compiled, lines = 0, list[str]()
    # A compiler that outlived us would go on writing where the next build, which has the lock by then, writes too.
    command = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "10", go, "build", "-v", *arguments]
    with subprocess.Popen(command, cwd=tree, env=environment, stderr=subprocess.PIPE, text=True) as build:
        assert build.stderr is not None
        for line in build.stderr:
            compiled += bool(re.fullmatch(r"[\w./-]+\n", line))
            lines = [*lines[-40:], line]
            if time.monotonic() - spoke > PROGRESS_SECONDS:
                spoke = time.monotonic()
                say(f"compiled {compiled} of at most {total} packages ({_elapsed(began)})")
    if build.returncode != 0:
        raise Missing(f"go build {' '.join(targets)} failed:\n{''.join(lines)}")
    say(f"compiled {' '.join(targets)} ({_elapsed(began)})")


def _go_environment(work: Path) -> dict[str, str]:
    goroot = work / "compiler/usr/lib/go-1.19"
    return os.environ | {
        "PATH": f"{goroot / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "GOROOT": str(goroot),
        "GOPATH": str(work / "gopath"),
        "GOCACHE": str(work / "go-build"),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }


def _ldflags() -> str:
    """Without a version, clients see v0.0.0-master and Helm refuses to work."""
    major, minor, _ = VERSION.removeprefix("v").split(".")
    values = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("component-base/version", "client-go/pkg/version")
    flags = [
        f"-X k8s.io/kubernetes/vendor/k8s.io/{package}.{name}={value}"
        for package in packages
        for name, value in values.items()
    ]
    return " ".join(["-s", "-w", *flags])


def _elapsed(began: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{minutes}:{seconds:02} min"
