"""The HTTP client of the booking service: one credential, one way to report errors, and retries.

A write is repeated only if that cannot do it twice: with the same idempotency key, or because repeating it has no
further effect.

The login that it uses is a file that only its owner may read, or what options say instead of it.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import aiohttp
import typer

from carrel.cli.booking_text import InvalidDate
from carrel.cli.options import BookingServiceSettings
from carrel.command_errors import CONFLICT, FORBIDDEN, NOT_FOUND, REFUSED, UNAVAILABLE, USAGE, command_failed


@dataclass(frozen=True, slots=True)
class Login:
    server: str
    token: str = field(default="", repr=False)
    token_id: str = ""
    email: str = ""


def login_of(settings: BookingServiceSettings) -> Login:
    """From the options, the environment or the saved login. Without one, the command ends with the reason."""
    login = known_login(settings)
    if not login.server:
        why = "There is no --server, no CARREL_URL and no saved login."
        raise command_failed("No booking service is known", why, "carrel login https://gpus.lab.org", USAGE)
    check_address(login.server, settings.insecure)
    if not login.token:
        hint = f"carrel login {login.server}"
        raise command_failed(f"Not logged in to {login.server}", "There is no token for it.", hint, USAGE)
    return login


def known_login(settings: BookingServiceSettings) -> Login:
    """What is known of it. A token that was given or saved for this service wins over that of the notebook."""
    saved = read_login()
    server = settings.server.rstrip("/") or (saved.server if saved else "")
    token = settings.token or (saved.token if saved and saved.server == server else "")
    return Login(server, token or settings.hub_token)


def check_address(server: str, insecure: bool) -> None:
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        why = f"{server!r} is not the URL of a service."
        raise command_failed("Which booking service?", why, "carrel login https://gpus.lab.org", USAGE)
    if not insecure and not is_private(server):
        why = "Without TLS, others on the network could read your token and book in your name."
        raise command_failed(
            f"{server} is not safe", why, "use https, or add --insecure if you trust the network", USAGE
        )


def is_private(server: str) -> bool:
    """Whether a token may be sent there: over TLS, or to this machine."""
    parts = urlsplit(server)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))


def login_file() -> Path:
    """As in the XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "carrel" / "login.json"


def read_login() -> Login | None:
    try:
        found = json.loads(login_file().read_text())
        return Login(*(str(found[name]) for name in ("server", "token", "token_id", "email")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_login(login: Login) -> Path:
    """Atomic, and never readable by others, not even for a moment."""
    file = login_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {"server": login.server, "token": login.token, "token_id": login.token_id, "email": login.email}
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".login-")  # created with mode 0600
    with os.fdopen(handle, "w") as opened:
        json.dump(content, opened, indent=2)
    Path(name).replace(file)
    return file


def forget_login() -> None:
    login_file().unlink(missing_ok=True)


T = TypeVar("T")

PAUSES_S = (0.5, 1.0, 2.0)
"""Between two attempts."""
TIMEOUT = aiohttp.ClientTimeout(total=40, connect=10)
RETRIED = (429, 502, 503, 504)
NO_CONTENT = 204
MOST_BYTES = 32 * 1024 * 1024
"""Of an answer. A page of bookings has a few hundred kilobytes."""
EXIT_CODES = {400: USAGE, 401: FORBIDDEN, 403: FORBIDDEN, 404: NOT_FOUND, 409: CONFLICT, 412: CONFLICT, 413: USAGE}


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    body: Any
    etag: str = ""


class RequestRefused(Exception):
    """The service answered with an error."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = problem
        super().__init__(str(problem.get("title", status)))

    def complaint(self) -> typer.Exit:
        """Prints three lines: what, why (all reasons), and what to do."""
        problem = self.problem
        problems = problem.get("problems")
        reasons = [_reason(each) for each in problems if isinstance(each, dict)] if isinstance(problems, list) else []
        why = "\n  ".join(filter(None, reasons)) or str(problem.get("detail", f"The service answered {self.status}."))
        is_rule = problem.get("code") == "rules-broken"
        code = REFUSED if is_rule else EXIT_CODES.get(self.status, USAGE if self.status == 422 else UNAVAILABLE)
        hint = str(problem.get("hint") or "carrel --help")
        return command_failed(str(problem.get("title", "The service refused the request")), why, hint, code)


def _reason(problem: Mapping[str, Any]) -> str:
    """With the name of the field, if the service could not read a field."""
    message, field = str(problem.get("message", "")), problem.get("field")
    return f"{field}: {message}" if field else message


class ServiceUnreachable(Exception):
    """No answer after all attempts. A write may have taken effect."""

    def complaint(self, server: str) -> typer.Exit:
        return command_failed(
            f"No answer from {server}", str(self), "run the command again: nothing is done twice", UNAVAILABLE
        )


class NotTheService(Exception):
    """Somebody else answers there: a sign-in page of the network, a proxy, another program."""

    def complaint(self, server: str) -> typer.Exit:
        hint = "compare the address with that of the booking page: carrel login https://gpus.lab.org"
        return command_failed(f"This is no booking service: {server}", str(self), hint, UNAVAILABLE)


class BookingClient:
    def __init__(self, login: Login, http: aiohttp.ClientSession) -> None:
        self._login = login
        self._http = http

    async def call(self, method: str, path: str, **call: Any) -> ServiceAnswer:
        """Raises `RequestRefused`, `ServiceUnreachable` or `NotTheService`. `json`, `params` and `headers` are those of
        aiohttp."""
        why = ""
        for pause_s in (*PAUSES_S, None):
            try:
                status, body, etag = await self._once(method, path, call)
            except (aiohttp.ClientError, TimeoutError) as error:
                status, why = 0, str(error) or type(error).__name__
            if status and status not in RETRIED:
                if status >= 400:
                    raise RequestRefused(status, body if isinstance(body, dict) else {})
                if status >= 300 or (status != NO_CONTENT and not isinstance(body, dict)):
                    raise NotTheService(f"It answered {status}, with something else than a JSON object.")
                return ServiceAnswer(body, etag)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        if status:
            raise RequestRefused(status, body if isinstance(body, dict) else {})
        raise ServiceUnreachable(why)

    async def _once(self, method: str, path: str, call: dict[str, Any]) -> tuple[int, Any, str]:
        url = f"{self._login.server}/api/v1{path}"
        headers = {**call.get("headers", {}), "authorization": f"Bearer {self._login.token}"}
        # A redirect could carry the token to another host.
        given = {**call, "headers": headers, "timeout": TIMEOUT, "allow_redirects": False}
        async with self._http.request(method, url, **given) as answer:
            text = b""
            async for part in answer.content.iter_any():
                text += part
                if len(text) > MOST_BYTES:
                    raise NotTheService(f"Its answer has more than {MOST_BYTES // 1024**2} MiB.")
            return answer.status, _json(text), answer.headers.get("etag", "")

    async def zone(self) -> ZoneInfo:
        """The zone of the lab: people read and write dates in it."""
        return ZoneInfo((await self.call("GET", "/rules")).body["zone"])

    async def find_booking(self, id: str, command: str) -> ServiceAnswer:
        """The booking with this id. Without an id: the caller's active or planned booking, if there is exactly one."""
        if not id:
            params = [("user", "me"), ("state", "active"), ("state", "planned")]
            found = (await self.call("GET", "/bookings", params=params)).body["items"]
            if not found:
                why = "You have no active or planned booking."
                raise command_failed(f"Nothing to {command}", why, "carrel list", NOT_FOUND)
            if len(found) > 1:
                listed = ", ".join(f"{item['id']} ({item['model']}, {item['state']})" for item in found)
                raise command_failed(
                    "Which booking?", f"You have {listed}.", f"carrel {command} {found[0]['id']}", USAGE
                )
            id = found[0]["id"]
        return await self.call("GET", f"/bookings/{id}")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def ask_service(
    settings: BookingServiceSettings, ask: Callable[[BookingClient], Awaitable[T]], date_example: str = ""
) -> T:
    """Runs `ask` with a client. Every error ends the command with its reason.

    `date_example` shows how this command is written with a date.
    """
    login = login_of(settings)

    async def with_client() -> T:
        async with aiohttp.ClientSession() as http:
            return await ask(BookingClient(login, http))

    try:
        return asyncio.run(with_client())
    except RequestRefused as refused:
        raise refused.complaint() from None
    except (ServiceUnreachable, NotTheService) as no_answer:
        raise no_answer.complaint(login.server) from None
    except InvalidDate as invalid:
        raise command_failed("Invalid date", f"{invalid}.", date_example, USAGE) from None
