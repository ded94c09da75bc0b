"""The HTTP client of the booking service: one credential, one way to report errors, and retries.

A write is repeated only if that cannot do it twice: with the same idempotency key, or because repeating it has no
further effect. The standard library's client is enough, and is loaded in a tenth of the time of an asynchronous one.

The login that it uses is a file that only its owner may read, or what options say instead of it.
"""

import json
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit
from zoneinfo import ZoneInfo

import typer

from carrel.cli.booking_text import booking_name
from carrel.cli.dates import InvalidDate
from carrel.cli.options import BookingServiceSettings
from carrel.command_errors import CONFLICT, FORBIDDEN, NOT_FOUND, REFUSED, UNAVAILABLE, USAGE, command_failed
from carrel.ids import short_id

EXAMPLE = "carrel login https://gpus.lab.example"


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
        raise command_failed("No booking service is known", why, EXAMPLE, USAGE)
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
    return Login(server, (token or settings.hub_token).strip())


def check_address(server: str, insecure: bool) -> None:
    parts = address_of(server)
    if parts is None:
        raise command_failed("Which booking service?", f"{server!r} is not the URL of a service.", EXAMPLE, USAGE)
    if not is_safe(server, insecure):
        why = "Without TLS, others on the network could read your token and book in your name."
        advice = f"carrel login https{server.removeprefix('http')}"
        raise command_failed(f"{server} is not safe", f"{why} --insecure allows it.", advice, USAGE)


def address_of(server: str) -> SplitResult | None:
    """The parts of the URL of a service; None: it is not one."""
    try:
        parts = urlsplit(server)
        is_url = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        return None
    return parts if is_url and server.isascii() and server.isprintable() and " " not in server else None


def is_safe(server: str, insecure: bool) -> bool:
    """Whether a token may be sent there: over TLS, to this machine, or anywhere if the person says so."""
    parts = address_of(server)
    return parts is not None and (insecure or parts.scheme == "https" or is_own_machine(parts.hostname))


def is_own_machine(host: str | None) -> bool:
    return host in ("localhost", "127.0.0.1", "::1")


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
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".login-")  # created with mode 0600
    with os.fdopen(handle, "w") as opened:
        json.dump(asdict(login), opened, indent=2)
    Path(name).replace(file)
    return file


def forget_login() -> None:
    login_file().unlink(missing_ok=True)


PAUSES_S = (0.5, 1.0, 2.0)
"""Between two attempts."""
CONNECT_S, ANSWER_S = 10.0, 30.0
RETRIED = (429, 502, 503, 504)
NO_CONTENT = 204
MOST_BYTES = 32 * 1024 * 1024
"""Of an answer. A page of bookings has a few hundred kilobytes."""
WHOLE_ID = 32
"""Digits of a booking's id. A prefix may be given instead, of at least `SHORTEST_ID`."""
SHORTEST_ID = 4
EXIT_CODES = {400: USAGE, 401: FORBIDDEN, 403: FORBIDDEN, 404: NOT_FOUND, 409: CONFLICT, 412: CONFLICT, 413: USAGE}


NOTHING: Mapping[str, str] = {}


class ServiceAnswer(NamedTuple):
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
        return command_failed(f"No answer from {server}", str(self), f"carrel login {server}", UNAVAILABLE)


class NotTheService(Exception):
    """Somebody else answers there: a sign-in page of the network, a proxy, another program."""

    def complaint(self, server: str) -> typer.Exit:
        why = f"{self} Compare the address with that of the booking page."
        return command_failed(f"This is no booking service: {server}", why, EXAMPLE, UNAVAILABLE)


def why_unreachable(error: Exception) -> str:
    """In words that tell the mistakes apart: a wrong name, nothing that listens, no TLS, an unknown authority."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"Its certificate is not trusted: {error.verify_message}."
    if isinstance(error, ssl.SSLError):
        return "It does not speak TLS: perhaps its address begins with http, not https."
    if isinstance(error, socket.gaierror):
        return "The network knows no machine of this name."
    if isinstance(error, ConnectionRefusedError):
        return "Nothing listens there."
    if isinstance(error, TimeoutError):
        return "It did not answer in time."
    return f"The connection broke: {getattr(error, 'strerror', None) or error or type(error).__name__}."


class BookingClient:
    def __init__(self, login: Login, patience_s: float = ANSWER_S) -> None:
        """`patience_s`: how long an answer may take."""
        self._login = login
        self._patience_s = patience_s

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] = NOTHING,
    ) -> ServiceAnswer:
        """Raises `RequestRefused`, `ServiceUnreachable` or `NotTheService`."""
        query = f"?{urlencode(params)}" if params else ""
        status, body, why = 0, None, ""
        for pause_s in (*PAUSES_S, None):
            try:
                status, body, known = self.once(method, f"/api/v1{quote(path)}{query}", json, headers)
            except (ssl.SSLError, socket.gaierror, TimeoutError) as error:  # once more would not help, or take too long
                raise ServiceUnreachable(why_unreachable(error)) from None
            except (OSError, HTTPException) as error:
                status, why = 0, why_unreachable(error)
            if status and status not in RETRIED:
                if status >= 400:
                    raise RequestRefused(status, body if isinstance(body, dict) else {})
                if status >= 300 or (status != NO_CONTENT and not isinstance(body, dict)):
                    raise NotTheService(f"It answered {status}, with something else than a JSON object.")
                return ServiceAnswer(body, known.get("etag", ""))
            if pause_s is not None:
                time.sleep(pause_s)
        if status:
            raise RequestRefused(status, body if isinstance(body, dict) else {})
        raise ServiceUnreachable(why)

    def once(
        self, method: str, target: str, content: Any = None, headers: Mapping[str, str] = NOTHING
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON (None: something else) and headers. Redirects are not followed: one could carry the token to
        another host. Raises `OSError`, `HTTPException` or `NotTheService`."""
        parts = urlsplit(self._login.server)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        token = {"authorization": f"Bearer {self._login.token}"} if self._login.token else {}
        given = {"accept": "application/json", "content-type": "application/json", **token, **headers}
        body = json.dumps(content).encode() if content is not None else None
        until = time.monotonic() + self._patience_s
        with closing(kind(parts.hostname or "", parts.port, timeout=min(CONNECT_S, self._patience_s))) as connection:
            connection.connect()
            connection.sock.settimeout(self._patience_s)
            connection.request(method, parts.path + target, body, given)
            answer, text = connection.getresponse(), b""
            while part := answer.read1():
                text += part
                if len(text) > MOST_BYTES:
                    raise NotTheService(f"Its answer has more than {MOST_BYTES // 1024**2} MiB.")
                if time.monotonic() > until:
                    raise TimeoutError
            if answer.length:
                raise ConnectionResetError("a part of the answer is missing")
            return answer.status, _json(text), {name.lower(): value for name, value in answer.getheaders()}

    def zone(self) -> ZoneInfo:
        """The zone in which the person reads and writes dates: their own, or that of the lab."""
        return ZoneInfo(self.call("GET", "/rules").body["zone"])

    def find_booking(self, id: str, command: str) -> ServiceAnswer:
        """The booking whose id begins so. Without an id: the caller's active or planned one, if there is just one."""
        if len(id) != WHOLE_ID:
            id = self._with_prefix(id, command) if id else self._own(command)
        return self.call("GET", f"/bookings/{id}")

    def _own(self, command: str) -> str:
        params = [("user", "me"), ("state", "active"), ("state", "planned")]
        found = self.call("GET", "/bookings", params=params).body["items"]
        if not found:
            raise command_failed(
                f"Nothing to {command}", "You have no active or planned booking.", "carrel list", NOT_FOUND
            )
        if len(found) > 1:
            raise _ambiguous("You have", found, command)
        return str(found[0]["id"])

    def _with_prefix(self, id: str, command: str) -> str:
        found = self.call("GET", "/bookings", params={"id": id, "limit": 20}).body["items"]
        found = [each for each in found if each["id"].startswith(id)]
        if any(each["id"] == id for each in found) or not found:
            return id
        if len(found) > 1:
            raise _ambiguous(f"Several ids begin with {id}:", found, command)
        if len(id) < SHORTEST_ID:
            why = f"Give at least {SHORTEST_ID} digits of the id. One begins so: {booking_name(found[0])}."
            raise command_failed("Which booking?", why, f"carrel {command} {short_id(found[0]['id'])}", USAGE)
        return str(found[0]["id"])


def _ambiguous(which: str, found: Sequence[dict[str, Any]], command: str) -> typer.Exit:
    ids = [each["id"] for each in found]
    length = next((n for n in range(8, WHOLE_ID) if len({id[:n] for id in ids}) == len(ids)), WHOLE_ID)
    why = "\n".join([which, *(f"{each['id'][:length]}  {booking_name(each)}" for each in found)])
    return command_failed("Which booking?", why, f"carrel {command} {ids[0][:length]}", USAGE)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


@contextmanager
def asking(settings: BookingServiceSettings, date_example: str = "") -> Iterator[BookingClient]:
    """A client of the service. Every error within the block ends the command with its reason.

    `date_example` shows how this command is written with a date.
    """
    login = login_of(settings)
    try:
        with complaining(login.server):
            yield BookingClient(login)
    except InvalidDate as invalid:
        raise command_failed("Invalid date", f"{invalid}.", date_example, USAGE) from None


@contextmanager
def complaining(server: str) -> Iterator[None]:
    """If there is no answer within the block, or a refusal, the command ends with the reason."""
    try:
        yield
    except RequestRefused as refused:
        raise refused.complaint() from None
    except (ServiceUnreachable, NotTheService) as no_answer:
        raise no_answer.complaint(server) from None
