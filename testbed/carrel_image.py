"""An image with Carrel in it, made without a container engine: this Python, what Carrel needs of it, and Carrel.

One layer, laid out as in any image of Python: the interpreter and `carrel` in /usr/local/bin, the libraries that they
are linked with beside them. It is made anew when one of its parts has changed, in seconds, and kept in the cache.
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

import carrel
import kubernetes_in_memory
from testbed.images import Image
from testbed.tools import cache, locked

NAME = "testbed/carrel:1"
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
HOME = Path("usr/local")
STDLIB = HOME / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
UNUSED = {"site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"}
UNUSED_SUFFIXES = {".pyi", ".c", ".h", ".pyx", ".pxd", ".a", ".exe"}
LAUNCHER = b"#!/usr/local/bin/python3\nfrom carrel.__main__ import main\n\nmain()\n"

Parts = dict[Path, Path]
"""Place in the image → file on this machine."""


def carrel_image() -> Image:
    content = parts()
    digest = hashlib.sha256(NAME.encode())
    for place, file in sorted(content.items()):
        found = file.stat()
        digest.update(f"{place} {found.st_size} {found.st_mtime_ns}\n".encode())
    kept = cache() / "images" / f"carrel-{digest.hexdigest()[:16]}.tar"
    with locked("carrel-image"):
        if not kept.exists():
            _make(content, kept)
        layer = kept.read_bytes()
    environment = {"LD_LIBRARY_PATH": f"/{HOME}/lib", "PYTHONHOME": f"/{HOME}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Image(NAME, layer, ["carrel", "--help"], environment)


def _make(content: Parts, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in kept.parent.glob("carrel-*.tar"):
        old.unlink()
    draft = kept.with_suffix(".draft")
    with tarfile.open(draft, "w") as archive:
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(folder)
        for place, file in sorted(content.items()):
            # A .pyc is believed by the time of its source, so files keep theirs.
            archive.add(file.resolve(), str(place), recursive=False)
        launcher = tarfile.TarInfo(str(HOME / "bin/carrel"))
        launcher.size, launcher.mode = len(LAUNCHER), 0o755
        archive.addfile(launcher, io.BytesIO(LAUNCHER))
    draft.rename(kept)


def parts() -> Parts:
    """All files of the image except the launcher."""
    packages = STDLIB / "site-packages"
    content = dict(_python())
    content |= {packages / place: file for place, file in _packages()}
    # Compiled files of a checkout come and go, and would make another image of the same program.
    for package in (carrel, kubernetes_in_memory):
        folder = Path(str(package.__file__)).parent
        source = [each for each in _files(folder) if each[0].suffix != ".pyc"]
        content |= {packages / folder.name / place: file for place, file in source}
    return content | dict(_linked_with(content))


def _python() -> Iterator[tuple[Path, Path]]:
    yield HOME / "bin/python3", Path(sys.executable).resolve()
    for place, file in _files(Path(sysconfig.get_paths()["stdlib"])):
        yield STDLIB / place, file


def _packages() -> Iterator[tuple[Path, Path]]:
    """The files of everything that Carrel needs, and of what that needs."""
    seen: dict[tuple[str, str], Distribution] = {}
    wanted = _named(tomllib.loads(PROJECT.read_text())["project"]["dependencies"], "")
    while wanted:
        name, extra = wanted.pop()
        if (name, extra) not in seen:
            with suppress(PackageNotFoundError):  # for other systems, or chosen by hand
                seen[name, extra] = distribution(name)
                wanted += _named(seen[name, extra].requires or (), extra)
    for found in {each.metadata["Name"]: each for each in seen.values()}.values():
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            if ".." not in file.parts and _is_used(Path(file)) and path.is_file():
                yield Path(file), path


def _named(lines: Iterable[str], extra: str) -> list[tuple[str, str]]:
    """The packages that these lines ask for, once for each of their extras and once without."""
    needs = map(Requirement, lines)
    asked = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return [(need.name, each) for need in asked for each in ("", *need.extras)]


def _files(folder: Path) -> Iterator[tuple[Path, Path]]:
    # The demo's examples are a link to those of the checkout.
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if each not in UNUSED and not each.startswith("config-")]
        for name in names:
            place = (Path(parent) / name).relative_to(folder)
            if _is_used(place):
                yield place, Path(parent) / name


def _is_used(place: Path) -> bool:
    is_code = place.suffix not in UNUSED_SUFFIXES and ".opt-" not in place.name
    return is_code and not UNUSED.intersection(place.parts) and not place.name.startswith("_tkinter")


def _linked_with(content: Parts) -> Iterator[tuple[Path, Path]]:
    """The shared libraries of this machine that the interpreter and the packages need."""
    binaries = [file for place, file in content.items() if ".so" in place.name or place.name == "python3"]
    told = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    for line in told.splitlines():
        found = re.search(r"(?:=> )?(/\S+) \(0x", line)
        if found is None or "site-packages" in found[1]:
            continue
        path = Path(found[1])
        # Programs name their loader by its place; everything else is looked for by name.
        yield (path.relative_to("/") if path.name.startswith("ld-") else HOME / "lib" / path.name), path
