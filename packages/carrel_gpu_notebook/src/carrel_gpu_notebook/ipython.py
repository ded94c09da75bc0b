"""Prints a notice with the next cell, once for each notice: people see it in any client, also without JupyterLab."""

import sys
from datetime import datetime, timezone
from typing import Any

from carrel_gpu_notebook.notice import Notice, read_notice


class NoticePrinter:
    def __init__(self) -> None:
        self._printed = ""

    def before_cell(self, _: Any = None) -> None:
        notice = read_notice()
        if notice.sentence and notice.sentence != self._printed:
            print(words(notice, datetime.now(timezone.utc)), file=sys.stderr)
        self._printed = notice.sentence


def words(notice: Notice, now: datetime) -> str:
    said = f"Carrel: {notice.sentence[:1].upper()}{notice.sentence[1:]}."
    left = notice.seconds_left(now)
    minutes, seconds = divmod(int(left or 0), 60)
    when = f" Time left: {minutes} min {seconds} s." if left else ""
    return f"{said}{when}{f' {notice.link.label}: {notice.link.url}' if notice.link else ''}"


def load_ipython_extension(shell: Any) -> None:
    shell.events.register("pre_run_cell", NoticePrinter().before_cell)
