"""How all processes log: one line per event, which nobody else can forge.

A line says when, which level, what happened, and its fields as `name=value`. Whatever others wrote into it, in names,
messages, paths or headers, can neither begin a line of its own nor rewrite what a terminal shows
(`parsing.printable`). The lines of a stack trace are indented, because an exception's message may have line breaks.
"""

import logging
import sys
import time
from types import TracebackType
from typing import TextIO

from carrel.parsing.printable import printable

FORM, DATES = "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"
INDENT = "    "

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class OneLine(logging.Formatter):
    """Many lines are written in the same second."""

    _second: tuple[int, str] = (0, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        second = int(record.created)
        if second != self._second[0]:
            self._second = (second, super().formatTime(record, datefmt))
        return self._second[1]

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def log_lines(level: int, stream: TextIO | None = None, form: str = FORM) -> None:
    """All loggers of this process write such lines: to stderr, unless a stream is given."""
    lines = logging.StreamHandler(stream or sys.stderr)
    formatter = OneLine(form, DATES)
    formatter.converter = time.gmtime
    lines.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[lines], force=True)
    # No line shows where it was written, so it need not be found out.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = ""


def _indented(text: str) -> str:
    return "\n".join(f"{INDENT}{printable(line)}" for line in text.split("\n"))
