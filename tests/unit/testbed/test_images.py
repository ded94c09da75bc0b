"""An image is a file that containerd accepts: a manifest that names a configuration and a layer that match."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from testbed.images import Image


def test_an_image_file_names_its_layer_by_digest_and_its_command(tmp_path: Path) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("hello"))
    Image("testbed/hello:1", layer.getvalue(), ["/hello", "you"]).write(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        content = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        parts = {name: file.read() for name, file in content.items() if file}
    (manifest,) = json.loads(parts["manifest.json"])
    configuration = json.loads(parts[manifest["Config"]])
    (layer_name,) = manifest["Layers"]
    assert manifest["RepoTags"] == ["testbed/hello:1"]
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(parts[layer_name]).hexdigest()}"]
    assert configuration["config"]["Cmd"] == ["/hello", "you"]
