"""Container images written as files, without a container engine: one layer, in the form that `docker save` writes."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

BUSYBOX = "testbed/busybox:1"
"""A shell and the usual small commands, `wget`, `nc` and `httpd` among them."""
PAUSE = "testbed/pause:1"
"""Holds a pod's network while its containers start and end."""


class Loadable(Protocol):
    """An image that a node can load."""

    @property
    def name(self) -> str: ...

    def write(self, file: Path) -> None: ...


@dataclass(frozen=True)
class Image:
    name: str
    layer: bytes
    """An uncompressed tar archive."""
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        digest = hashlib.sha256(self.layer).hexdigest()
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **self.environment}
        configuration = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [f"{name}={value}" for name, value in environment.items()], "Cmd": list(self.command)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}]
        with tarfile.open(file, "w") as archive:
            _add(archive, "config.json", json.dumps(configuration).encode())
            _add(archive, "manifest.json", json.dumps(manifest).encode())
            _add(archive, "layer.tar", self.layer)


def busybox_images(busybox: Path) -> list[Image]:
    applets = subprocess.check_output([busybox, "--list"], text=True).split()
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    layer = _layer({"bin/busybox": busybox.read_bytes()}, links)
    return [Image(BUSYBOX, layer, ["sh"]), Image(PAUSE, layer, ["sleep", "2147483647"])]


def program_image(name: str, program: Path) -> Image:
    """With one program that needs no library."""
    place = f"usr/local/bin/{program.name}"
    return Image(name, _layer({place: program.read_bytes()}, {}), [f"/{place}"])


def _layer(programs: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder, mode in {"bin": 0o755, "etc": 0o755, "tmp": 0o1777}.items():
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for path, content in programs.items():
            _add(archive, path, content, mode=0o755)
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
