"""An image as one file that Docker, Podman, containerd and kind can load: an OCI layout, with Docker's manifest beside.

The same contents give the same bytes: files have no times and no owners but root.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Layer:
    compressed: bytes
    diff_id: str
    """The digest of the archive before it was compressed."""
    unpacked_bytes: int

    @classmethod
    def of(cls, folder: Path) -> "Layer":
        """All files below the folder."""
        buffer = io.BytesIO()
        size = 0
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in sorted(folder.rglob("*")):
                entry = archive.gettarinfo(path, str(path.relative_to(folder)))
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mtime = 0
                if entry.islnk():  # a file with two names is two files: layers are unpacked over each other
                    entry.type, entry.size = tarfile.REGTYPE, path.stat().st_size
                size += entry.size
                if entry.isreg():
                    with path.open("rb") as content:
                        archive.addfile(entry, content)
                else:
                    archive.addfile(entry)
        plain = buffer.getvalue()
        return cls(gzip.compress(plain, 6, mtime=0), _digest(plain), size)

    def keep(self, file: Path) -> None:
        """Compressing takes seconds; `kept` reads it again."""
        draft = file.with_suffix(".draft")
        facts = _json({"diff_id": self.diff_id, "unpacked_bytes": self.unpacked_bytes})
        draft.write_bytes(facts + b"\n" + self.compressed)
        draft.rename(file)

    @classmethod
    def kept(cls, file: Path) -> "Layer":
        facts, _, compressed = file.read_bytes().partition(b"\n")
        return cls(compressed, **json.loads(facts))


@dataclass(frozen=True)
class OciImage:
    name: str
    architecture: str
    layers: Sequence[Layer]
    user: int
    entry_point: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        configuration = _json(
            {
                "architecture": self.architecture,
                "os": "linux",
                "created": EPOCH,
                "config": {
                    "User": f"{self.user}:{self.user}",
                    "Entrypoint": list(self.entry_point),
                    "Env": [f"{name}={value}" for name, value in self.environment.items()],
                    "Labels": dict(self.labels),
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
            }
        )
        oci = "application/vnd.oci.image"
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{oci}.manifest.v1+json",
                "config": _described(f"{oci}.config.v1+json", configuration),
                "layers": [_described(f"{oci}.layer.v1.tar+gzip", layer.compressed) for layer in self.layers],
                "annotations": dict(self.labels),
            }
        )
        # containerd takes the name as it is written, and asks for short names in their long form.
        names = {"org.opencontainers.image.ref.name": self.name, "io.containerd.image.name": _long(self.name)}
        index = {
            **_described(f"{oci}.manifest.v1+json", manifest),
            "platform": {"architecture": self.architecture, "os": "linux"},
            "annotations": names,
        }
        for_docker = {
            "Config": _blob(configuration),
            "RepoTags": [self.name],
            "Layers": [_blob(layer.compressed) for layer in self.layers],
        }
        with tarfile.open(file, "w") as archive:
            _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": [index]}))
            _add(archive, "manifest.json", _json([for_docker]))
            for content in (configuration, manifest, *(layer.compressed for layer in self.layers)):
                _add(archive, _blob(content), content)


def _long(name: str) -> str:
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _described(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _blob(content: bytes) -> str:
    return "blobs/" + _digest(content).replace(":", "/")


def _add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))
