"""Where binaries come from, and the message where they are not available."""

import os
import re
from pathlib import Path

import pytest

from testbed import build, debian, golang, pin, tools
from testbed.__main__ import main


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No programs, an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    return tmp_path


def put(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch(mode=0o755)


def test_given_programs_are_used_if_they_are_complete(bare_machine: Path) -> None:
    put(bare_machine / "assets", "kube-apiserver", "kubelet")
    found = tools.assets("kube-apiserver", "kubelet")
    assert found == {name: bare_machine / "assets" / name for name in ("kube-apiserver", "kubelet")}


def test_programs_of_two_releases_are_not_mixed(bare_machine: Path) -> None:
    put(bare_machine / "assets", "kube-apiserver")
    put(bare_machine / "path", "kube-apiserver", "kubelet")
    assert tools.assets("kube-apiserver", "kubelet") is None


def test_the_newest_release_is_built_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.kubernetes().name == "kubernetes-1.37.1"
    monkeypatch.setenv("KUBERNETES", "v1.35.4")
    assert build.kubernetes().name == "kubernetes-1.35.4"


def test_a_release_that_is_not_pinned_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES", "1.34.4")
    with pytest.raises(tools.Missing, match=r"pinned: .*1\.37\.1.* python -m testbed pin 1\.34\.4"):
        build.kubernetes()


@pytest.mark.parametrize("release", ["newest", "v1.37.1", "1.37", "../1.37.1"])
def test_something_that_is_not_a_release_is_not_pinned(release: str) -> None:
    with pytest.raises(tools.Missing, match=r"write it like 1\.37\.1"):
        pin.pin(release)


@pytest.mark.parametrize(
    "programs",
    [
        build.ETCD,
        build.CONTAINERD,
        build.CNI_PLUGINS,
        build.CONTAINER_TOOLKIT,
        build.Programs("kubernetes-1.37.1"),
        build.Programs("kubernetes-1.35.4"),
    ],
    ids=lambda programs: programs.name,
)
def test_everything_built_is_pinned_by_version_and_hash(programs: build.Programs) -> None:
    version = programs.name.rpartition("-")[2]
    named, hashed = ((programs.pin / file).read_text() for file in ("go.mod", "go.sum"))
    required = re.findall(r"^(?:require )?\t?(\S+) (v\S+)(?: // indirect)?$", named, re.MULTILINE)
    mains = [(module, found) for module, found in required if found == f"v{version}"]
    assert mains, f"nothing of version {version} is required"
    assert all(f"{module} {found} h1:" in hashed for module, found in mains)


@pytest.mark.parametrize(
    ("says", "taken"),
    [
        pytest.param("go1.26.8", "path/go", id="new enough"),
        pytest.param("go1.26", "fetched", id="a patch too old"),
        pytest.param("go1.9.7", "fetched", id="much too old"),
        pytest.param("no idea", "fetched", id="not understood"),
    ],
)
def test_go_is_the_machines_own_where_it_is_new_enough(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, says: str, taken: str
) -> None:
    put(bare_machine / "path", "go")
    (bare_machine / "path/go").write_text(f"#!/bin/sh\necho '{says}'\n")
    monkeypatch.setattr(golang, "_fetched", lambda: bare_machine / "fetched")
    assert golang.go("1.26.0") == bare_machine / taken


def test_go_is_fetched_where_there_is_none(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golang, "_fetched", lambda: bare_machine / "fetched")
    assert golang.go("1.26.0") == bare_machine / "fetched"


def test_everything_that_a_machine_lacks_for_the_tests_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["prepare"]) == 1
    told = capsys.readouterr().err
    assert [thing for thing in ("root", "unshare", "nsenter", "apt-get", "dpkg-deb") if thing not in told] == []


@pytest.mark.parametrize(
    ("file", "text", "address"),
    [
        pytest.param(
            "sources.list",
            "# deb http://old.example/debian sid main\ndeb [arch=amd64] http://near.example/debian bookworm main\n",
            "http://near.example/debian",
            id="one line",
        ),
        pytest.param(
            "sources.list.d/debian.sources",
            "Types: deb\nURIs: https://near.example/debian/\nSuites: bookworm\n",
            "https://near.example/debian/",
            id="stanzas",
        ),
        pytest.param(
            "sources.list",
            "deb http://near.example/debian-security bookworm main\ndeb http://near.example/ubuntu jammy main\n",
            "",
            id="neither security updates nor another distribution",
        ),
    ],
)
def test_the_mirror_is_the_one_that_apt_uses(tmp_path: Path, file: str, text: str, address: str) -> None:
    path = tmp_path / "apt" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert debian.mirror(tmp_path / "apt") == address
