"""Secrets that change while a process runs."""

from pathlib import Path

import pytest

from carrel.http import tls_files
from carrel.http.tls_files import WatchedFiles


@pytest.fixture(autouse=True)
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_files, "LOOK_EVERY_S", 0.0)


def test_a_file_is_read_again_when_it_has_changed_and_kept_while_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    failures: list[Exception] = []
    path.write_text("one")
    read = WatchedFiles([path], path.read_text, failures.append)
    assert read() == "one"

    (tmp_path / "new").write_text("another")
    (tmp_path / "new").replace(path)  # as the kubelet does with a mounted Secret
    assert read() == "another"

    path.unlink()
    assert read() == "another" and failures


def test_a_file_that_is_not_there_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        WatchedFiles([tmp_path / "none"], (tmp_path / "none").read_text, print)
