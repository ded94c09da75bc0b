"""Carrel's image: one list of contents for all who build it, and an archive that says the same as its files."""

import gzip
import io
import json
import re
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest

from testbed.tools import Missing
from tools.image import contents
from tools.image.archive import Layer, OciImage
from tools.image.binaries import check_binaries


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested = pins(contents.CHECKOUT / "requirements.lock")
    in_image = pins(contents.PYTHON_PACKAGES)
    assert {name: version for name, version in in_image.items() if tested.get(name) != version} == {}
    assert {"aiohttp", "grpcio", "psycopg-binary", "nvidia-ml-py", "msgspec"} <= set(in_image)
    assert not {"pytest", "mypy", "ruff", "playwright"} & set(in_image)


def test_the_containerfile_says_about_the_image_what_the_list_says() -> None:
    text = (contents.CHECKOUT / "Containerfile").read_text().replace("\\\n", " ")
    last_stage = text[text.index("FROM scratch") :].splitlines()
    said = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in last_stage if " " in line}

    def pairs(instruction: str) -> dict[str, str]:
        return dict(each.split("=", 1) for each in shlex.split(said[instruction]))

    assert pairs("LABEL") == contents.labels()
    assert pairs("ENV") == contents.ENVIRONMENT
    assert said["USER"] == f"{contents.USER}:{contents.USER}"
    assert json.loads(said["ENTRYPOINT"]) == list(contents.ENTRY_POINT)
    assert said["COPY"] == "--from=build /image /"


def a_folder(at: Path) -> Path:
    (at / "bin").mkdir()
    (at / "bin/run").write_text("words")
    (at / "bin/run").chmod(0o755)
    (at / "bin/again").symlink_to("run")
    return at


def test_a_layer_of_the_same_files_is_the_same_layer(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = Layer.of(a_folder(tmp_path / "one")), Layer.of(a_folder(tmp_path / "two"))
    assert one == two
    assert one.unpacked_bytes == len("words")


def test_a_kept_layer_is_read_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    layer = Layer.of(a_folder(tmp_path / "files"))
    layer.keep(tmp_path / "kept.layer")
    assert Layer.kept(tmp_path / "kept.layer") == layer


def test_an_archive_can_be_read_as_an_oci_layout_and_as_dockers(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    image = OciImage(
        "carrel:1", "amd64", [Layer.of(a_folder(tmp_path / "files"))], 65532, ["run"], {"A": "b"}, {"c": "d"}
    )
    image.write(tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:

        def read(path: str) -> bytes:
            member = archive.extractfile(path)
            assert member is not None
            return member.read()

        def blob(digest: str) -> bytes:
            return read("blobs/" + digest.replace(":", "/"))

        described = json.loads(read("index.json"))["manifests"][0]
        manifest: dict[str, Any] = json.loads(blob(described["digest"]))
        configuration = json.loads(blob(manifest["config"]["digest"]))
        (for_docker,) = json.loads(read("manifest.json"))
        layer = blob(manifest["layers"][0]["digest"])
        assert read(for_docker["Layers"][0]) == layer
        assert json.loads(read(for_docker["Config"])) == configuration

    assert described["annotations"]["io.containerd.image.name"] == "docker.io/library/carrel:1"
    assert for_docker["RepoTags"] == ["carrel:1"]
    assert configuration["config"]["User"] == "65532:65532"
    assert configuration["config"]["Entrypoint"] == ["run"]
    assert configuration["config"]["Env"] == ["A=b"]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer))) as files:
        found = {entry.name: (entry.uid, entry.mtime) for entry in files}
    assert found == dict.fromkeys(("bin", "bin/again", "bin/run"), (0, 0))


def an_elf(machine: int) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(44)


def test_programs_for_another_machine_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/words.txt").write_text("words")
    with pytest.raises(Missing, match="it has no programs"):
        check_binaries(tmp_path, "arm64")
    (tmp_path / "lib/right.so").write_bytes(an_elf(0xB7))
    (tmp_path / "link.so").symlink_to("/usr/bin/env")
    check_binaries(tmp_path, "arm64")
    (tmp_path / "lib/wrong.so").write_bytes(an_elf(0x3E))
    with pytest.raises(Missing, match=r"not for arm64: lib/wrong\.so"):
        check_binaries(tmp_path, "arm64")
    with pytest.raises(Missing, match=r"not for amd64: lib/right\.so"):
        check_binaries(tmp_path, "amd64")
