"""Where binaries come from, and what is said where they cannot come from anywhere."""

import os
from pathlib import Path

import pytest

from testbed import debian, tools
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


def test_programs_are_taken_from_the_first_place_that_has_them_all(bare_machine: Path) -> None:
    put(bare_machine / "assets", "kube-apiserver")
    put(bare_machine / "path", "kube-apiserver", "kubelet")
    put(bare_machine / "cache/carrel-testbed/bin", "kube-apiserver", "kubelet")
    found = tools.find("kube-apiserver", "kubelet")
    assert found == {name: bare_machine / "path" / name for name in ("kube-apiserver", "kubelet")}


def test_programs_of_two_places_are_not_mixed(bare_machine: Path) -> None:
    put(bare_machine / "assets", "kube-apiserver")
    put(bare_machine / "path", "kubelet")
    assert tools.find("kube-apiserver", "kubelet") is None


def test_a_machine_that_cannot_run_the_tests_is_told_everything_it_lacks(
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
