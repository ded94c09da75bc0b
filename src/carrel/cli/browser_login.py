"""How `carrel login` gets its token: the browser sends a code to a port of this machine, and the code is exchanged.

The token never passes the browser. The code works once, and only together with the verifier (PKCE), which stays here.
"""

import asyncio
import base64
import contextlib
import hashlib
import secrets
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import aiohttp
import typer
from aiohttp import web

from carrel.cli.booking_client import (
    TIMEOUT,
    BookingClient,
    Login,
    NotTheService,
    RequestRefused,
    ServiceUnreachable,
    check_address,
    forget_login,
    read_login,
    save_login,
)
from carrel.cli.login import LoginSettings
from carrel.cli.output import print_lines
from carrel.command_errors import UNAVAILABLE, USAGE, command_failed

TIMEOUT_S = 300.0
DONE = "You are logged in. You can close this page and return to the command line."
WRONG_STATE = "This is not the login that the command line started."


def log_in(settings: LoginSettings) -> None:
    saved = read_login()
    server = (settings.address or settings.server).rstrip("/") or (saved.server if saved else "")
    if not server:
        why = "A login needs the URL of the booking service."
        raise command_failed("Which booking service?", why, "carrel login https://gpus.lab.org", USAGE)
    check_address(server, settings.insecure)
    login = asyncio.run(_with_token(server, settings.token) if settings.token else _with_browser(server, settings))
    file = save_login(login)
    print_lines(f"Logged in to {server} as {login.email}; saved in {file}.")


def log_out() -> None:
    """Also if the service does not answer: then the token stays valid there until it expires."""
    saved = read_login()
    forget_login()
    if saved is None:
        typer.echo("You were not logged in.")
        return
    is_revoked = asyncio.run(_revoked(saved)) if saved.token_id else False
    typer.echo(f"Logged out of {saved.server}" + ("." if is_revoked else "; the token there was not revoked."))


async def _revoked(saved: Login) -> bool:
    async with aiohttp.ClientSession() as http:
        try:
            await BookingClient(saved, http).call("DELETE", f"/tokens/{saved.token_id}")
        except (RequestRefused, ServiceUnreachable, NotTheService):
            return False
    return True


async def _with_token(server: str, token: str) -> Login:
    return await _with_email(Login(server, token))


async def _with_email(login: Login) -> Login:
    async with aiohttp.ClientSession() as http:
        try:
            me = (await BookingClient(login, http).call("GET", "/me")).body
        except RequestRefused as refused:
            raise refused.complaint() from None
        except (ServiceUnreachable, NotTheService) as no_answer:
            raise no_answer.complaint(login.server) from None
    return Login(login.server, login.token, login.token_id, str(me["email"]))


async def _with_browser(server: str, settings: LoginSettings) -> Login:
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    async with _listening(state) as (port, code):
        request = {
            "port": port,
            "state": state,
            "challenge": challenge,
            "label": f"carrel on {socket.gethostname()}"[:100],
            "scopes": " ".join(settings.scope or ("read", "book")),
        }
        url = f"{server}/cli-login?{urlencode(request)}"
        within = f"within {TIMEOUT_S / 60:.0f} minutes"
        typer.echo(f"Open this URL in a browser on this machine and allow the login {within}:\n\n  {url}\n", err=True)
        if settings.browser and sys.stdout.isatty():
            await asyncio.to_thread(webbrowser.open, url)
        try:
            received = await asyncio.wait_for(code, TIMEOUT_S)
        except TimeoutError:
            why = f"No browser came back {within}."
            raise command_failed("Not logged in", why, f"carrel login {server}", UNAVAILABLE) from None
    made = await _exchanged(server, received, verifier)
    return await _with_email(Login(server, str(made["token"]), str(made["id"])))


async def _exchanged(server: str, code: str, verifier: str) -> dict[str, Any]:
    """No retries: the code works once, so a lost answer means another login."""
    async with aiohttp.ClientSession() as http:
        try:
            url, body = f"{server}/api/v1/tokens/exchange", {"code": code, "verifier": verifier}
            async with http.post(url, json=body, timeout=TIMEOUT, allow_redirects=False) as answer:
                made: dict[str, Any] = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ServiceUnreachable(str(error)).complaint(server) from None
    if answer.status != 200:
        raise RequestRefused(answer.status, made).complaint()
    return made


@contextlib.asynccontextmanager
async def _listening(state: str) -> AsyncIterator[tuple[int, "asyncio.Future[str]"]]:
    """A port of this machine, and the code that the browser sends there with the right state."""
    code: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def receive(call: web.Request) -> web.Response:
        received, their_state = call.query.get("code", ""), call.query.get("state", "")
        if not received or not secrets.compare_digest(their_state.encode(), state.encode()):
            return web.Response(text=WRONG_STATE, status=400)
        if not code.done():
            code.set_result(received)
        return web.Response(text=DONE)

    app = web.Application()
    app.router.add_get("/", receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield runner.addresses[0][1], code
    finally:
        await runner.cleanup()
