"""What every call passes before anything else looks at it: pace per address, size and time of the body, and the headers
that keep a browser from being used against its owner.

Plain ASGI, because a stream (the live map) must pass through unbuffered.
"""

import asyncio
import contextlib
import ipaddress
import math
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders

from carrel.bookings.sign_in.rates import Buckets, Rate
from carrel.http.problems import Problem
from carrel.http.serving import AsgiApp, Receive, Scope, Send

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Message = MutableMapping[str, Any]

CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from another host, nothing inline, in nobody's frame."""

HEADERS = {
    "content-security-policy": CONTENT_SECURITY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "private, no-cache",
}
"""Unless the answer says otherwise itself."""


_LENGTH = re.compile("[0-9]{1,18}")
PER_ADDRESS = Rate(per_second=500, burst=2000)
"""Against floods only: a whole lab may sit behind one address, and the webhook takes no answer for no booking."""
MOST_DRAINED = 32 * 1024 * 1024
PER_PERSON = Rate(per_second=20, burst=100)


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = 64 * 1024
    """A booking is a few hundred; nothing that people send us is larger."""
    body_s: float = 30.0
    """A sender who dawdles longer keeps a connection for nothing."""
    address: Rate = PER_ADDRESS
    trusted_proxies: tuple[Network, ...] = ()
    """Whose X-Forwarded-For is believed: anybody can write one."""


class Gate:
    def __init__(self, app: AsgiApp, limits: Limits, clock: Callable[[], float], *, is_https: bool) -> None:
        self._app = app
        self._limits = limits
        self._pace = Buckets(limits.address, clock)
        self._headers = {**HEADERS, **({"strict-transport-security": "max-age=31536000"} if is_https else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, receive, send, self._limits, self._headers)
        wait_s = self._pace.wait_s(caller_of(scope, self._limits.trusted_proxies))
        length = Headers(scope=scope).get("content-length", "0")
        if wait_s:
            await visit.refuse(too_many(wait_s))
        elif not _LENGTH.fullmatch(length) or int(length) > self._limits.body_bytes:
            await visit.refuse(too_large(self._limits))
        else:
            try:
                await self._app(scope, visit.receive, visit.send)
            except Problem as problem:
                await visit.refuse(problem)


class _Visit:
    """One call on its way through the gate."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits, headers: Mapping[str, str]) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limits = limits
        self._headers = headers
        self._size = 0
        self._is_whole = False
        self._has_answered = False
        self._problem: Problem | None = None
        self._until = asyncio.get_running_loop().time() + limits.body_s

    async def receive(self) -> Message:
        """Counts a body whose length was not said, or was a lie, and the time that it takes."""
        if self._is_whole:
            return await self._receive()  # waits for the caller to go away, as long as that takes
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise self._noted(too_slow(self._limits)) from None
        self._size += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise self._noted(too_large(self._limits))
        return message

    def _noted(self, problem: Problem) -> Problem:
        """Frameworks turn whatever interrupts the reading of a body into an answer of theirs; ours says why."""
        self._problem = problem
        return problem

    async def send(self, message: Message) -> None:
        if self._problem is not None and not self._has_answered:
            await self.refuse(self._problem)
        elif self._problem is None:
            await self._send_with_headers(message)

    async def refuse(self, problem: Problem) -> None:
        if not self._has_answered:
            self._problem = problem
            await self._drain()
            await problem.response()(self._scope, self._receive, self._send_with_headers)

    async def _drain(self) -> None:
        """Reads the rest of the body and drops it: a connection closed before would take the answer with it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._until):
                while not self._is_whole and self._size <= MOST_DRAINED:
                    message = await self._receive()
                    self._size += len(message.get("body", b""))
                    self._is_whole = not message.get("more_body", False)

    async def _send_with_headers(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_answered = True
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            for name, value in self._headers.items():
                headers.setdefault(name, value)
            message = {**message, "headers": headers.raw}
        await self._send(message)


def too_large(limits: Limits) -> Problem:
    why = f"A request may have {limits.body_bytes:,} bytes."
    problem = Problem(413, "too-large", "The request is too large", why, "send less at a time")
    return problem.with_headers({"connection": "close"})


def too_slow(limits: Limits) -> Problem:
    why = f"The body did not come within {limits.body_s:.0f} s."
    problem = Problem(408, "too-slow", "The request took too long", why, "send it again")
    return problem.with_headers({"connection": "close"})


def too_many(wait_s: float) -> Problem:
    seconds = math.ceil(wait_s)
    why = f"There is room for the next in {seconds} s."
    problem = Problem(429, "too-many-requests", "Too many requests", why, "wait, then send it again")
    return problem.with_headers({"retry-after": str(seconds)})


def caller_of(scope: Scope, trusted: Sequence[Network]) -> str:
    """The address of who called, or of whom the last proxy that we trust says it was."""
    address = scope["client"][0] if scope.get("client") else ""
    said = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
    while said and _is_in(address, trusted):
        forwarded = said.pop().strip()
        if not forwarded:
            break
        address = forwarded
    return address


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)
