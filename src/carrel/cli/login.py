"""`carrel login`: the browser brings a code, which is exchanged for a token.

The token never passes the browser. The code works once, for two minutes, and only together with the verifier (PKCE),
which stays here. The browser sends it to a port of this machine; where it runs on another one, as over SSH, the page
shows the code, and the person types it here. Nobody can let a stranger in by pressing a button on a page that was sent
to them, as with device codes: the code must be typed where the login began.
"""

import base64
import hashlib
import queue
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import typer

from carrel.cli.booking_client import (
    BookingClient,
    Login,
    NotTheService,
    RequestRefused,
    ServiceUnreachable,
    address_of,
    check_address,
    complaining,
    forget_login,
    is_own_machine,
    read_login,
    save_login,
    why_unreachable,
)
from carrel.cli.options import BookingServiceSettings, Words
from carrel.cli.output import print_lines
from carrel.command_errors import NOT_FOUND, UNAVAILABLE, USAGE, command_failed
from carrel.option_fields import argument, option

TIMEOUT_S = 300.0
EXAMPLE = "carrel login https://gpus.lab.example"
DONE = "You are logged in. You can close this page and return to the command line."
WRONG_STATE = "This is not the login that the command line started."
AT_HUBS = "/services/carrel"
"""Where a JupyterHub serves it."""


@dataclass(frozen=True)
class LoginSettings(BookingServiceSettings):
    address: str = argument(
        "", "The booking service, such as gpus.lab.example or https://hub.lab.example/services/carrel."
    )
    scope: Words = option(None, "What it may do: read, book, admin; default: read and book.")
    """Admins do not need admin rights for everyday work."""
    browser: bool = option(
        True,
        "Use a browser on this machine; otherwise, as over SSH, print the URL and ask for the code of its page.",
    )
    ssh: str = option("", "Set by SSH: the browser is elsewhere.", envvar="SSH_CONNECTION", hidden=True)
    """Is set where the person, and their browser, are on another machine."""
    forget: bool = option(False, "Log out: revoke the token and delete the login.", "--forget")


def login(settings: LoginSettings) -> None:
    """Log in to the booking service with a browser, and save the login.

    The browser may be on another machine, as over SSH: then you type the code that its page shows. Give the code to
    nobody else. With --token (or CARREL_TOKEN) it checks and saves that token instead.

    Examples:

      carrel login gpus.lab.example

      carrel login https://hub.lab.example/services/carrel --no-browser

      carrel login --forget
    """
    saved = read_login()
    if settings.forget:
        _log_out(saved)
        return
    server = _with_scheme((settings.address or settings.server).rstrip("/")) or (saved.server if saved else "")
    if not server:
        raise command_failed("Which booking service?", "A login needs its address.", EXAMPLE, USAGE)
    check_address(server, settings.insecure)
    probe(server)
    with complaining(server):
        made = Login(server, settings.token) if settings.token else _with_browser(server, settings)
        email = str(BookingClient(made).call("GET", "/me").body["email"])
    file = save_login(Login(server, made.token, made.token_id, email))
    print_lines(f"Logged in to {server} as {email}; saved in {file}.")


def _with_scheme(server: str) -> str:
    """With https, if nothing else is said and it is not this machine."""
    if not server or "://" in server:
        return server
    parts = address_of(f"http://{server}")
    return f"{'http' if parts and is_own_machine(parts.hostname) else 'https'}://{server}"


def _log_out(saved: Login | None) -> None:
    """Also if the service does not answer: then the token stays valid there until it expires."""
    forget_login()
    if saved is None:
        typer.echo("You were not logged in.")
        return
    try:
        BookingClient(saved).call("DELETE", f"/tokens/{saved.token_id}")
        end = "."
    except (RequestRefused, ServiceUnreachable, NotTheService):
        end = "; the token there was not revoked."
    typer.echo(f"Logged out of {saved.server}{end}")


# --- is it there? ----------------------------------------------------------------------------------------------------


def probe(server: str) -> None:
    """The command ends with the reason if no booking service answers there."""
    found = _answer_of(server)
    if isinstance(found, str):
        plain = f"http{server.removeprefix('https')}"
        has_plain = server.startswith("https:") and "TLS" in found and not isinstance(_answer_of(plain), str)
        advice = f"carrel login {plain}{'' if is_own_machine(urlsplit(plain).hostname) else ' --insecure'}"
        advice = advice if has_plain else f"curl -I {server}"
        raise command_failed(f"No answer from {server}", found, advice, UNAVAILABLE)
    status, is_carrel, location = found
    if is_carrel:
        return
    parts = urlsplit(server)
    paths = ("", AT_HUBS) if parts.path else (AT_HUBS,)
    others = [urlunsplit((parts.scheme, parts.netloc, path, "", "")) for path in paths]
    if location.startswith("https:") and parts.scheme == "http":
        others.insert(0, f"https{server.removeprefix('http')}")
    right = next((each for each in others if not isinstance(seen := _answer_of(each), str) and seen[1]), "")
    why = f"It answered {status}, but not as Carrel does."
    why += f" Carrel is at {right}." if right else " Compare the address with that of the booking page."
    what = f"This is no booking service: {server}"
    raise command_failed(what, why, f"carrel login {right}" if right else EXAMPLE, NOT_FOUND)


def _answer_of(server: str) -> tuple[int, bool, str] | str:
    """Its status, whether Carrel's API answers there, and where it redirects to; or why there is no answer."""
    try:
        status, body, headers = BookingClient(Login(server)).once("GET", "/api/v1/me")
    except NotTheService as other:
        return str(other)
    except (OSError, HTTPException) as error:
        return why_unreachable(error)
    return status, isinstance(body, dict) and body.get("code") == "not-signed-in", headers.get("location") or ""


# --- the browser -----------------------------------------------------------------------------------------------------


def _with_browser(server: str, settings: LoginSettings) -> Login:
    """No retries: the code works once, so a lost answer means another login."""
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    asked = {
        "state": state,
        "challenge": challenge,
        "label": f"carrel on {socket.gethostname()}"[:100],
        "scopes": " ".join(settings.scope or ("read", "book")),
    }
    is_here = settings.browser and not settings.ssh
    code = _received(server, asked, settings) if is_here else _typed(server, asked)
    try:
        status, body, _ = BookingClient(Login(server)).once(
            "POST", "/api/v1/tokens/exchange", {"code": code, "verifier": verifier}
        )
    except (OSError, HTTPException) as error:
        raise ServiceUnreachable(why_unreachable(error)) from None
    made: dict[str, Any] = body if isinstance(body, dict) else {}
    if status != 200:
        raise RequestRefused(status, made)
    return Login(server, str(made["token"]), str(made["id"]))


def _typed(server: str, asked: dict[str, str]) -> str:
    typer.echo(
        f"Open this URL in a browser and allow the login:\n\n  {server}/cli-login?{urlencode(asked)}\n", err=True
    )
    try:
        code: str = typer.prompt("The code that its page shows", default="", show_default=False, err=True).strip()
    except typer.Abort:
        code = ""
    if not code:
        raise command_failed("Not logged in", "No code was typed.", f"carrel login {server}", USAGE)
    return code


def _received(server: str, asked: dict[str, str], settings: LoginSettings) -> str:
    with _listening(asked["state"]) as (port, codes):
        url = f"{server}/cli-login?{urlencode(asked | {'port': str(port)})}"
        within = f"within {TIMEOUT_S / 60:.0f} minutes"
        elsewhere = f"A browser on another machine: carrel login {server} --no-browser"
        typer.echo(f"Open this URL in a browser on this machine and allow the login {within}:\n\n  {url}\n", err=True)
        typer.echo(elsewhere, err=True)
        if sys.stdout.isatty():
            webbrowser.open(url)
        try:
            return codes.get(timeout=TIMEOUT_S)
        except queue.Empty:
            why = f"No browser came back {within}."
            raise command_failed("Not logged in", why, f"carrel login {server} --no-browser", UNAVAILABLE) from None


@contextmanager
def _listening(state: str) -> Iterator[tuple[int, "queue.Queue[str]"]]:
    """A port of this machine, and the codes that the browser sends there with the right state."""
    codes = queue.Queue[str]()

    class Receiver(BaseHTTPRequestHandler):
        timeout = TIMEOUT_S

        def do_GET(self) -> None:
            given = parse_qs(urlsplit(self.path).query)
            code, theirs = given.get("code", [""])[0], given.get("state", [""])[0]
            is_ours = bool(code) and secrets.compare_digest(theirs.encode(), state.encode())
            text = (DONE if is_ours else WRONG_STATE).encode()
            self.send_response(200 if is_ours else 400)
            self.send_header("content-type", "text/plain")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            if is_ours:
                codes.put(code)

        def log_message(self, *_: Any) -> None:
            """Nothing is logged: the code would be in it."""

    # A thread for each connection: browsers open some that they do not use.
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], codes
        finally:
            server.shutdown()
