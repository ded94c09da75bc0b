"""Limits for every request, before anything else reads it: rate per address, size and duration of the body. Every
answer gets the security headers here.

Plain ASGI, because a stream (the live map) must pass through unbuffered.
"""

import asyncio
import contextlib
import ipaddress
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers, MutableHeaders

from carrel.http.asgi import AsgiApp, Receive, Scope, Send
from carrel.http.problems import Problem


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    burst: float


PER_PERSON = Rate(per_second=20, burst=200)
LONG_ANSWER = 4.0
"""What a request with a long answer costs: five of them a second, a quarter of one core."""
CHANGES_PER_PERSON = Rate(per_second=0.1, burst=100)


class RateLimiter:
    """A token bucket per caller, in bounded memory.

    The bucket that was not used for the longest time is dropped first; it would be full.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float], most: int = 10_000) -> None:
        self._rate = rate
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str, cost: float = 1.0) -> float:
        """Takes so many tokens. Returns 0, or the seconds to wait if the bucket does not have them."""
        now = self._clock()
        level, then = self._buckets.pop(caller, (self._rate.burst, now))
        level = min(self._rate.burst, level + (now - then) * self._rate.per_second)
        is_allowed = level >= cost
        self._buckets[caller] = (level - cost * is_allowed, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (cost - level) / self._rate.per_second

    def give_back(self, caller: str, cost: float = 1.0) -> None:
        """What was taken for something that should cost nothing."""
        if caller in self._buckets:
            level, then = self._buckets[caller]
            self._buckets[caller] = (min(self._rate.burst, level + cost), then)

    def __len__(self) -> int:
        return len(self._buckets)


class PersonLimiter:
    """Limits the requests of people who are signed in.

    What a person changes is stored for ever, and the person is mailed about it. So changes have a limit of their own:
    one that people do not notice, and that keeps a program in a loop from filling the database. And what takes long to
    answer costs more than the rest: a timeline of 1,000 bookings takes 50 ms, and 20 of them a second would leave
    nothing for other people.
    """

    def __init__(
        self, clock: Callable[[], float], requests: Rate = PER_PERSON, changes: Rate = CHANGES_PER_PERSON
    ) -> None:
        self._requests = RateLimiter(requests, clock)
        self._changes = RateLimiter(changes, clock)

    def wait_s(self, person: str, *, is_change: bool = False, is_long: bool = False) -> float:
        """Return 0, or the seconds to wait. `is_long`: the answer takes long."""
        wait_s = self._requests.wait_s(person, LONG_ANSWER if is_long else 1.0)
        return wait_s or (self._changes.wait_s(person) if is_change else 0.0)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Message = MutableMapping[str, Any]

CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from other hosts, nothing inline, not in a frame."""
OWN_HOST = "'self'"

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "private, no-cache",
}
"""Unless the answer sets the header itself."""


def content_security(own_source: str = OWN_HOST, form_action: str = "") -> str:
    """The policy for a service that has only a part of its host; forms may also be sent to `form_action`."""
    forms = f"form-action {OWN_HOST} {form_action}".rstrip()
    return CONTENT_SECURITY.replace(f"form-action {OWN_HOST}", forms).replace(OWN_HOST, own_source)


_LENGTH = re.compile("[0-9]{1,18}")
PER_ADDRESS = Rate(per_second=500, burst=2000)
"""Against floods only: a whole lab may share one address, and the webhook treats a missing answer as no booking."""
MAX_DRAINED = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestLimits:
    body_bytes: int = 64 * 1024
    """A booking has a few hundred bytes; no valid request is larger than this, but for the `long_lists`."""
    long_lists: re.Pattern[str] = re.compile(r"/api/v1/imported-bookings|/api/v1/groups/.+/people|/admin/groups")
    """The paths that take up to 2,000 bookings or people at a time."""
    long_list_bytes: int = 1024 * 1024
    body_s: float = 30.0
    """A slower sender would hold a connection for nothing."""
    address: Rate = PER_ADDRESS
    trusted_proxies: tuple[Network, ...] = ()
    """Their X-Forwarded-For is trusted. Anybody else can forge the header."""

    def at(self, path: str) -> "RequestLimits":
        """Return the limits for a path."""
        return replace(self, body_bytes=self.long_list_bytes) if self.long_lists.fullmatch(path) else self


class RequestGuard:
    def __init__(
        self,
        app: AsgiApp,
        limits: RequestLimits,
        clock: Callable[[], float],
        *,
        is_https: bool,
        own_source: str = OWN_HOST,
    ) -> None:
        """`own_source` is what pages may load from, in the words of the Content-Security-Policy."""
        self._app = app
        self._limits = limits
        self._rate_limiter = RateLimiter(limits.address, clock)
        security = {"content-security-policy": content_security(own_source)}
        self._headers = HEADERS | security | ({"strict-transport-security": "max-age=31536000"} if is_https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limits = self._limits.at(scope["path"])
        guarded = _GuardedRequest(scope, receive, send, limits, self._headers)
        wait_s = self._rate_limiter.wait_s(client_address(scope, limits.trusted_proxies))
        length = Headers(scope=scope).get("content-length", "0")
        if wait_s:
            await guarded.refuse(too_many(wait_s))
        elif not _LENGTH.fullmatch(length) or int(length) > limits.body_bytes:
            await guarded.refuse(too_large(limits))
        else:
            try:
                await self._app(scope, guarded.receive, guarded.send)
            except Problem as problem:
                await guarded.refuse(problem)


class _GuardedRequest:
    """One request while it passes the guard."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: RequestLimits, headers: Mapping[str, str]
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limits = limits
        self._headers = headers
        self._size = 0
        self._is_whole = False
        self._has_answered = False
        self._problem: Problem | None = None
        self._until = asyncio.get_running_loop().time() + limits.body_s

    async def receive(self) -> Message:
        """Counts the bytes and the time of the body, in case its length was missing or wrong."""
        if self._is_whole:
            return await self._receive()  # waits until the caller disconnects, without a limit
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise self._remember(too_slow(self._limits)) from None
        self._size += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise self._remember(too_large(self._limits))
        return message

    def _remember(self, problem: Problem) -> Problem:
        """A framework turns an error while it reads the body into its own answer. Ours gives the reason."""
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
        """Reads and drops the rest of the body: if the connection closed earlier, the answer would be lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._until):
                while not self._is_whole and self._size <= MAX_DRAINED:
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


def too_large(limits: RequestLimits) -> Problem:
    why = f"A request may have at most {limits.body_bytes:,} bytes."
    problem = Problem(413, "too-large", "The request is too large", why, "send less at a time")
    return problem.with_headers({"connection": "close"})


def too_slow(limits: RequestLimits) -> Problem:
    why = f"The body did not arrive within {limits.body_s:.0f} s."
    problem = Problem(408, "too-slow", "The request took too long", why, "send it again")
    return problem.with_headers({"connection": "close"})


def too_many(wait_s: float) -> Problem:
    seconds = math.ceil(wait_s)
    why = f"The next request is possible in {seconds} s."
    problem = Problem(429, "too-many-requests", "Too many requests", why, "wait, then send it again")
    return problem.with_headers({"retry-after": str(seconds)})


def client_address(scope: Scope, trusted: Sequence[Network]) -> str:
    """The address of the caller, or the one that the last trusted proxy reports."""
    address = scope["client"][0] if scope.get("client") else ""
    forwarded_for = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
    while forwarded_for and _is_in(address, trusted):
        forwarded = forwarded_for.pop().strip()
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
