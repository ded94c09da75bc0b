"""A real `carrel booking` process with a file of GPUs, in dev mode; and tokens for people."""

import base64
import contextlib
import hashlib
import http.cookiejar
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kit.configuration import config_file
from tests.kit.eventually import LIMIT_S

GPUS = """\
nodes:
  - name: n1
    gpus:
      - {count: 2, model: NVIDIA-RTX-A6000, memoryMiB: 49140}
      - {count: 8, model: NVIDIA-A100-SXM4-80GB, memoryMiB: 81920}
"""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Browser:
    """Keeps cookies."""

    def __init__(self) -> None:
        self._cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())

    def open(self, url: str, form: dict[str, str] | None = None) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        opener = urllib.request.build_opener(self._cookies)
        return str(opener.open(url, data, timeout=60).read().decode())

    def sent_to(self, url: str, form: dict[str, str]) -> str:
        """Where a form redirects to, without following it."""
        opener = urllib.request.build_opener(self._cookies, _NoRedirect)
        try:
            opener.open(url, urllib.parse.urlencode(form).encode(), timeout=60)
        except urllib.error.HTTPError as answer:
            return str(answer.headers["location"])
        raise AssertionError("there was no redirect")


class BookingProcess:
    def __init__(self, url: str) -> None:
        self.url = url

    def browser(self, email: str, role: str = "member") -> Browser:
        """A browser in which a person has signed in."""
        browser = Browser()
        browser.open(f"{self.url}/sign-in/dev", {"email": email, "role": role, "back": "/sign-in"})
        return browser

    def allow(self, browser: Browser, address: str) -> str:
        """Presses “Allow” on the page that a command line opens; returns the address that follows."""
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', browser.open(address)))
        return browser.sent_to(f"{self.url}/cli-login", form)

    def token(self, email: str, role: str = "member", scopes: str = "read book admin") -> str:
        """The way a command line gets one."""
        verifier, state = "v" * 43, "s" * 43
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        question = {"port": 50000, "state": state, "challenge": challenge, "label": "test", "scopes": scopes}
        back = self.allow(self.browser(email, role), f"{self.url}/cli-login?{urllib.parse.urlencode(question)}")
        code = urllib.parse.parse_qs(urllib.parse.urlsplit(back).query)["code"][0]
        body = json.dumps({"code": code, "verifier": verifier}).encode()
        headers = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/api/v1/tokens/exchange", body, headers)
        made: dict[str, Any] = json.loads(urllib.request.urlopen(asked, timeout=60).read())
        return str(made["token"])


@contextlib.contextmanager
def booking_process(folder: Path, *options: str, more: str = "", **secrets: str) -> Iterator[BookingProcess]:
    gpus = folder / "gpus.yaml"
    gpus.write_text(GPUS)
    command = [sys.executable, "-m", "carrel", "booking", "--inventory", str(gpus), "--port", "0", "--dev"]
    # What is said of cancelling does not depend on a test's speed.
    text = f"lab: {{timezone: Europe/Stockholm}}\nbookings: {{rules: {{settlingTime: 0s}}}}\n{more}"
    command += ["--database", f"sqlite:///{folder}/carrel.db", "--config", config_file(folder, text), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder, env=os.environ | secrets) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"listening url=(\S+)", line):
                break
        else:
            raise AssertionError(f"it did not start:\n{said}")
        try:
            yield BookingProcess(found[1])
        finally:
            process.terminate()
            process.stderr.read()
            assert process.wait(LIMIT_S) == 0
