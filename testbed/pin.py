"""Pins a release of Kubernetes: writes the go.mod and go.sum that `build` builds it from. Not used by tests.

`k8s.io/kubernetes` takes the libraries that it is released with from its own tree, which the module does not contain.
They are modules of their own, of the same release, and our go.mod says so for each.
"""

import re
import subprocess
from pathlib import Path

import msgspec

from testbed import golang
from testbed.build import KUBERNETES, MODULES, go_environment
from testbed.tools import Missing, say

MODULE = "k8s.io/kubernetes"


class _Downloaded(msgspec.Struct, rename="pascal"):
    go_mod: str = ""
    error: str = ""


def pin(release: str) -> Path:
    """The folder that it has written. `release` is such as 1.37.1."""
    if not re.fullmatch(r"1\.\d+\.\d+", release):
        raise Missing(f"{release!r} is not a release of Kubernetes: write it like 1.37.1")
    folder = MODULES / f"kubernetes-{release}"
    say(f"reading {MODULE} {release}")
    go_mod = _go_mod(release, Path(_theirs(release)).read_text())
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(go_mod)
    say("looking up all that it is made of")
    _go(folder, "mod", "tidy")
    return folder


def _theirs(release: str) -> str:
    """The file in which the release says what it needs."""
    answer = _go(MODULES, "mod", "download", "-json", f"{MODULE}@v{release}", check=False)
    downloaded = msgspec.json.decode(answer or "{}", type=_Downloaded)
    if not downloaded.go_mod:
        raise Missing(f"Kubernetes {release} cannot be had: {downloaded.error or 'go mod download said nothing'}")
    return downloaded.go_mod


def _go_mod(release: str, theirs: str) -> str:
    language = re.search(r"^go (\S+)$", theirs, re.MULTILINE)
    libraries = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", theirs, re.MULTILINE)
    if language is None or not libraries:
        raise Missing(
            f"the go.mod of Kubernetes {release} is not as expected: it names no Go, or no library of its own"
        )
    version = f"v0.{release.removeprefix('1.')}"
    lines = [f"module carrel.dev/testbed/kubernetes-{release}", "", f"go {language[1]}", ""]
    lines += [f"require {MODULE} v{release}", "", "replace ("]
    lines += [f"\t{library} => {library} {version}" for library in libraries]
    lines += [")", "", "tool (", *(f"\t{MODULE}/cmd/{name}" for name in KUBERNETES), ")", ""]
    return "\n".join(lines)


def _go(folder: Path, *words: str, check: bool = True) -> str:
    # `tidy` is what changes the two files, which a build must not.
    environment = go_environment() | {"GOFLAGS": "-mod=mod -modcacherw"}
    outcome = subprocess.run(
        [golang.go("1.24"), *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if check and outcome.returncode != 0:
        raise Missing(f"go {' '.join(words)} failed:\n{outcome.stderr.strip()[-2000:]}")
    return outcome.stdout
