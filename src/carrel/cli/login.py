"""`carrel login`: a browser brings a code to a port of this machine, and the code is exchanged for a token.

The secret never passes the browser: the code works once, and only for who has the verifier (PKCE), which is here.
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
from urllib.parse import urlencode, urlsplit

import aiohttp
import typer
from aiohttp import web

from carrel.cli import login_file
from carrel.cli.booking_options import LoginSettings, ServiceSettings
from carrel.cli.booking_service import TIMEOUT, Lost, Refused, Service, no_answer
from carrel.cli.login_file import Login
from carrel.command_errors import UNAVAILABLE, USAGE, command_failed

PATIENCE_S = 300.0
DONE = "You are logged in. You may close this page and go back to the command line."
NOT_OURS = "This is not the login that the command line began."


def login_of(settings: ServiceSettings) -> Login:
    """What the options, the environment or the last login say; or the command ends with the reason."""
    kept = login_file.read()
    server = settings.server.rstrip("/") or (kept.server if kept else "")
    token = settings.token or (kept.token if kept and kept.server == server else "")
    if not server:
        why = "Neither --server, CARREL_URL nor a login says where it is."
        raise command_failed("No booking service is known", why, "carrel login https://gpus.lab.org", USAGE)
    _check_address(server, settings.insecure)
    if not token:
        raise command_failed(f"Not logged in to {server}", "There is no token for it.", f"carrel login {server}", USAGE)
    return Login(server, token)


def log_in(settings: LoginSettings) -> None:
    kept = login_file.read()
    server = (settings.address or settings.server).rstrip("/") or (kept.server if kept else "")
    if not server:
        why = "A login needs the address of the booking service."
        raise command_failed("Log in where?", why, "carrel login https://gpus.lab.org", USAGE)
    _check_address(server, settings.insecure)
    login = asyncio.run(_with_token(server, settings.token) if settings.token else _with_browser(server, settings))
    file = login_file.write(login)
    typer.echo(f"Logged in to {server} as {login.email}; kept in {file}.")


def forget(settings: LoginSettings) -> None:
    """Also where the service is away: then the token only expires there."""
    kept = login_file.read()
    login_file.forget()
    if kept is None:
        typer.echo("There was no login.")
        return
    is_revoked = asyncio.run(_revoked(kept)) if kept.token_id else False
    typer.echo(f"Logged out of {kept.server}" + ("." if is_revoked else "; the token there was not revoked."))


async def _revoked(kept: Login) -> bool:
    async with aiohttp.ClientSession() as http:
        try:
            await Service(kept, http).call("DELETE", f"/tokens/{kept.token_id}")
        except (Refused, Lost):
            return False
    return True


async def _with_token(server: str, token: str) -> Login:
    return await _known(Login(server, token))


async def _known(login: Login) -> Login:
    async with aiohttp.ClientSession() as http:
        try:
            me = (await Service(login, http).call("GET", "/me")).body
        except Refused as refused:
            raise refused.complaint() from None
        except Lost as lost:
            raise no_answer(login.server, lost) from None
    return Login(login.server, login.token, login.token_id, str(me["email"]))


async def _with_browser(server: str, settings: LoginSettings) -> Login:
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    async with _listening(state) as (port, code):
        question = {
            "port": port,
            "state": state,
            "challenge": challenge,
            "label": f"carrel on {socket.gethostname()}"[:100],
            "scopes": " ".join(settings.scope or ("read", "book")),
        }
        url = f"{server}/cli-login?{urlencode(question)}"
        typer.echo(f"Open this address in a browser on this machine, and allow it:\n\n  {url}\n", err=True)
        if settings.browser and sys.stdout.isatty():
            await asyncio.to_thread(webbrowser.open, url)
        try:
            brought = await asyncio.wait_for(code, PATIENCE_S)
        except TimeoutError:
            why = f"No browser came back within {PATIENCE_S:.0f} s."
            raise command_failed("Not logged in", why, f"carrel login {server}", UNAVAILABLE) from None
    made = await _exchanged(server, brought, verifier)
    return await _known(Login(server, str(made["token"]), str(made["id"])))


async def _exchanged(server: str, code: str, verifier: str) -> dict[str, Any]:
    """Asked once: the code works once, so a lost answer means another login."""
    async with aiohttp.ClientSession() as http:
        try:
            url, body = f"{server}/api/v1/tokens/exchange", {"code": code, "verifier": verifier}
            async with http.post(url, json=body, timeout=TIMEOUT, allow_redirects=False) as answer:
                made: dict[str, Any] = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise no_answer(server, Lost(str(error))) from None
    if answer.status != 200:
        raise Refused(answer.status, made).complaint()
    return made


@contextlib.asynccontextmanager
async def _listening(state: str) -> AsyncIterator[tuple[int, "asyncio.Future[str]"]]:
    """A port of this machine, and the code that a browser brings there with the right state."""
    code: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def receive(request: web.Request) -> web.Response:
        brought, theirs = request.query.get("code", ""), request.query.get("state", "")
        if not brought or not secrets.compare_digest(theirs.encode(), state.encode()):
            return web.Response(text=NOT_OURS, status=400)
        if not code.done():
            code.set_result(brought)
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


def _check_address(server: str, insecure: bool) -> None:
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        why = f"{server!r} is no address of a service."
        raise command_failed("Which booking service?", why, "carrel login https://gpus.lab.org", USAGE)
    if not insecure and not login_file.is_private(server):
        why = "Without TLS everybody on the way could read your token and book in your name."
        raise command_failed(
            f"{server} is not safe", why, "use https, or add --insecure if you trust the network", USAGE
        )
