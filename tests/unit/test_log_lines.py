"""Nobody forges a line of the log."""

import io
import logging
import re
from collections.abc import Iterator

import pytest

from carrel.log_lines import log_lines

FORGED = "lab/train\n2026-11-16T12:00:00.000Z INFO bound pod=lab/other\x1b[2J\u202e"
LINE = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z (INFO|WARNING|ERROR) ")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    log_lines(logging.INFO, stream)
    yield stream
    root.handlers[:], root.level = before, level


def test_the_text_of_others_is_one_line_without_control_characters(lines: io.StringIO) -> None:
    logging.getLogger("carrel.any").info("pod_ended pod=%s", FORGED)
    (line,) = lines.getvalue().splitlines()
    assert line.isprintable()
    assert line.endswith(r"pod=lab/train\n2026-11-16T12:00:00.000Z INFO bound pod=lab/other\x1b[2J\u202e")


def test_libraries_log_through_the_same_lines(lines: io.StringIO) -> None:
    for library in ("uvicorn.error", "aiohttp.server", "asyncio"):
        logging.getLogger(library).error("GET %s", FORGED)
    assert len(lines.getvalue().splitlines()) == 3


def test_a_stack_trace_begins_no_line_that_looks_like_one_of_ours(lines: io.StringIO) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("carrel.any").exception("work_failed key=%s", FORGED)
    first, *trace = lines.getvalue().splitlines()
    assert LINE.match(first)
    assert trace
    assert all(line.startswith("    ") and line.isprintable() for line in trace)


def test_each_line_has_the_time_of_its_event(lines: io.StringIO) -> None:
    for created in (1_800_000_000.25, 1_800_000_000.5, 1_800_000_001.0, 1_800_000_000.75):
        record = logging.makeLogRecord({"msg": "ticked", "levelname": "INFO", "levelno": logging.INFO})
        record.created, record.msecs = created, created % 1 * 1000
        logging.getLogger("carrel.any").handle(record)
    times = [line.split()[0] for line in lines.getvalue().splitlines()]
    assert times == [f"2027-01-15T08:00:0{rest}Z" for rest in ("0.250", "0.500", "1.000", "0.750")]
