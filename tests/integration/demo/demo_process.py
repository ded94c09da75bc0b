"""`carrel demo` as a process."""

import http.cookiejar
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.kit.eventually import LIMIT_S

T = TypeVar("T")

CARREL = [sys.executable, "-m", "carrel"]
KUBECTL = re.compile(r"kubectl --server (http://127\.0\.0\.1:\d+)")
BOOK = re.compile(r"book at (http://127\.0\.0\.1:\d+)")


class DemoProcess:
    """Its output is read all the time: the demo would stop if nobody read it."""

    def __init__(self, *options: str) -> None:
        command = [*CARREL, "demo", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.first_line_cpu_s = 0.0
        """How long it had worked when its first line came."""
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not self._lines:
                self.first_line_cpu_s = cpu_s(self.process.pid)
            self._lines.append(line)  # one by one: each is seen as it comes

    def lines_until(self, wanted: str) -> list[str]:
        deadline = time.monotonic() + LIMIT_S
        while True:
            has_ended, lines = not self._reader.is_alive(), self._lines.copy()
            found = next((number for number, line in enumerate(lines) if re.search(wanted, line)), None)
            if found is not None:
                return lines[: found + 1]
            assert not has_ended, f"the demo ended before it said {wanted!r}:\n{''.join(lines)}"
            assert time.monotonic() < deadline, "".join(lines)
            time.sleep(0.1)

    def api(self) -> str:
        """The address for kubectl."""
        found = KUBECTL.search(self.lines_until(KUBECTL.pattern)[-1])
        assert found is not None
        return found[1]

    def objects(self, path: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.api()}/{path}") as answer:
            items: list[dict[str, Any]] = json.load(answer)["items"]
        return items

    def pages_of(self, person: str) -> Callable[[str], str]:
        """The booking service as that person sees it: a path → what is there."""
        found = BOOK.search(self.lines_until(BOOK.pattern)[-1])
        assert found is not None
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        form = urllib.parse.urlencode({"email": f"{person}@lab.example", "role": "member"}).encode()
        browser.open(urllib.request.Request(f"{found[1]}/sign-in/dev", form, {"origin": found[1]})).close()

        def read(path: str) -> str:
            with browser.open(f"{found[1]}{path}") as answer:
                text: str = answer.read().decode()
            return text

        return read


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def eventually(look: Callable[[], T], what: str) -> T:
    """The first true answer."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S} s"
        time.sleep(0.2)
    return found


@contextmanager
def a_demo(*options: str) -> Iterator[DemoProcess]:
    running = DemoProcess(*options)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
