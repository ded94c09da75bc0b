"""The booking service, as a command line calls it: one credential, the same errors, and patience with lost answers.

A call that writes is sent again only in a way that cannot do it twice: with the same idempotency key, or because what
it asks for is the same however often it is done.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import aiohttp
import typer

from carrel.cli.login_file import Login
from carrel.command_errors import CONFLICT, FORBIDDEN, NOT_FOUND, REFUSED, UNAVAILABLE, USAGE, command_failed

PAUSES_S = (0.5, 1.0, 2.0)
TIMEOUT = aiohttp.ClientTimeout(total=40, connect=10)
AGAIN = (429, 502, 503, 504)
EXITS = {400: USAGE, 401: FORBIDDEN, 403: FORBIDDEN, 404: NOT_FOUND, 409: CONFLICT, 412: CONFLICT, 413: USAGE}


@dataclass(frozen=True, slots=True)
class Answer:
    body: Any
    etag: str = ""


class Refused(Exception):
    """The service said no, in its own words."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = problem
        super().__init__(str(problem.get("title", status)))

    def complaint(self) -> typer.Exit:
        """The same three lines as everywhere: what, why (all of it), and what to do."""
        said = self.problem
        reasons = [_reason(each) for each in said.get("problems", ()) if isinstance(each, dict)]
        why = "\n  ".join(filter(None, reasons)) or str(said.get("detail", f"The service answered {self.status}."))
        is_rule = said.get("code") == "rules-broken"
        code = REFUSED if is_rule else EXITS.get(self.status, USAGE if self.status == 422 else UNAVAILABLE)
        return command_failed(
            str(said.get("title", "The service said no")), why, str(said.get("hint") or "carrel --help"), code
        )


def _reason(problem: Mapping[str, Any]) -> str:
    """What could not be understood is told with its name."""
    message, field = str(problem.get("message", "")), problem.get("field")
    return f"{field}: {message}" if field else message


class Lost(Exception):
    """No answer came, however often it was asked; a write may have taken effect."""


class Service:
    def __init__(self, login: Login, http: aiohttp.ClientSession) -> None:
        self._login = login
        self._http = http

    async def call(self, method: str, path: str, **call: Any) -> Answer:
        """Raises `Refused`, or `Lost`. `json`, `params` and `headers` as aiohttp has them."""
        why = ""
        for pause_s in (*PAUSES_S, None):
            try:
                status, body, etag = await self._once(method, path, call)
            except (aiohttp.ClientError, TimeoutError) as error:
                status, why = 0, str(error) or type(error).__name__
            if status and status not in AGAIN:
                if status >= 400:
                    raise Refused(status, body if isinstance(body, dict) else {})
                return Answer(body, etag)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        if status:
            raise Refused(status, body if isinstance(body, dict) else {})
        raise Lost(why)

    async def _once(self, method: str, path: str, call: dict[str, Any]) -> tuple[int, Any, str]:
        url = f"{self._login.server}/api/v1{path}"
        headers = {**call.get("headers", {}), "authorization": f"Bearer {self._login.token}"}
        # A redirect could carry the token elsewhere.
        given = {**call, "headers": headers, "timeout": TIMEOUT, "allow_redirects": False}
        async with self._http.request(method, url, **given) as answer:
            text = await answer.text()
            return answer.status, _read(text), answer.headers.get("etag", "")

    async def zone(self) -> ZoneInfo:
        """The lab's, in which people read and write dates."""
        return ZoneInfo((await self.call("GET", "/rules")).body["zone"])


def _read(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def no_answer(server: str, lost: Lost) -> typer.Exit:
    return command_failed(f"No answer from {server}", str(lost), "send it again: nothing is done twice", UNAVAILABLE)
