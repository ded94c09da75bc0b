"""What is made of the files that Carrel mounts."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from carrel_gpu_notebook.ipython import NoticePrinter
from carrel_gpu_notebook.notice import Link, Notice, read_notice

REVOKED = "your GPU is needed for a booked pod: this pod ends at Tue 17 Nov 07:22 UTC; save your work now"
DUE = datetime(2026, 11, 17, 7, 22, tzinfo=UTC)
BOOK = Link("Book", "https://gpus.lab.example/timeline")


def read(folder: Path, files: dict[str, str], **environment: str) -> Notice:
    for name, text in files.items():
        (folder / name).write_text(text)
    return read_notice({"CARREL_NOTICE_FOLDER": str(folder), **environment})


@pytest.mark.parametrize(
    ("files", "notice"),
    [
        pytest.param({}, Notice(), id="no files"),
        pytest.param({"notice": "", "leave-by": ""}, Notice(), id="nothing to say"),
        pytest.param({"notice": REVOKED}, Notice(REVOKED), id="only the sentence"),
        pytest.param({"notice": REVOKED, "leave-by": "2026-11-17T07:22:00Z"}, Notice(REVOKED, DUE), id="a revocation"),
        pytest.param({"notice": REVOKED, "leave-by": "2026-11-17"}, Notice(REVOKED), id="a day is no instant"),
        pytest.param({"notice": REVOKED, "terminate-at": "1900-01-01T08:00:00Z"}, Notice(REVOKED), id="MAIA's mark"),
        pytest.param({"leave-by": "2026-11-17T07:22:00Z"}, Notice(), id="a time without a sentence"),
        pytest.param(
            {"notice": REVOKED, "leave-by": "2026-11-17T07:22:00Z", "terminate-at": "2026-11-20T18:00:00Z"},
            Notice(REVOKED, DUE),
            id="a revocation comes before the booking's end",
        ),
    ],
)
def test_a_notice_is_read_from_its_files(tmp_path: Path, files: dict[str, str], notice: Notice) -> None:
    assert read(tmp_path, files) == notice


@pytest.mark.parametrize(
    ("environment", "link"),
    [
        pytest.param({"CARREL_URL": "https://gpus.lab.example/"}, BOOK, id="of the command line"),
        pytest.param(
            {"CARREL_BOOK_URL": BOOK.url, "CARREL_URL": "http://carrel-booking.carrel"}, BOOK, id="of the spawner"
        ),
        pytest.param({"CARREL_URL": "javascript:alert(1)//"}, None, id="no address of a page"),
        pytest.param({}, None, id="none"),
    ],
)
def test_the_link_leads_to_the_booking_service(tmp_path: Path, environment: dict[str, str], link: Link | None) -> None:
    assert read(tmp_path, {"notice": REVOKED}, **environment).link == link


def test_a_booking_that_ends_can_be_extended(tmp_path: Path) -> None:
    found = read(tmp_path, {"notice": "x", "terminate-at": "2026-11-17T07:22:00Z"}, CARREL_URL="https://g.example")
    assert (found.due, found.link) == (DUE, Link("Extend", "https://g.example/timeline"))


def test_the_time_that_is_left_is_never_negative() -> None:
    assert Notice("x", DUE).seconds_left(DUE - timedelta(minutes=2)) == 120
    assert Notice("x", DUE).seconds_left(DUE + timedelta(minutes=2)) == 0
    assert Notice("x").seconds_left(DUE) is None


def test_each_notice_is_printed_with_one_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.setenv("CARREL_NOTICE_FOLDER", str(tmp_path))
    monkeypatch.setenv("CARREL_BOOK_URL", BOOK.url)
    printer, printed = NoticePrinter(), []
    for sentence in ("", "first", "first", "second", "", "second"):
        (tmp_path / "notice").write_text(sentence)
        printer.before_cell()
        printed.append(capsys.readouterr().err)

    first, second = (f"Carrel: {said}. Book: {BOOK.url}\n" for said in ("First", "Second"))
    assert printed == ["", first, "", second, "", second]
