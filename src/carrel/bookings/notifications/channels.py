"""The channels by which people are told: what the lab has, and how a message is posted to each.

What is posted is in `posts`. Redirects are not followed: an address is checked, or signed for, as it was given. A
failure never has the address in its words, because that is often as good as a password.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Protocol
from urllib.parse import quote

import aiohttp

from carrel.bookings.notifications import posts
from carrel.bookings.notifications.choices import MATRIX, OWN
from carrel.bookings.notifications.destinations import as_given, why_not
from carrel.bookings.notifications.messages import Message
from carrel.bookings.notifications.posts import ChatRequest

TIMEOUT = aiohttp.ClientTimeout(total=20)
FORBIDDEN, GONE = 403, 410


class Undelivered(Exception):
    """It did not arrive, or that is not known. `is_final`: another try would not help."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(why)


class Channel(Protocol):
    """Sends messages, for example by mail."""

    async def send(self, message: Message, address: str) -> None:
        """Raises `Undelivered`."""
        ...


class Channels:
    """What the lab has now. The configuration may change it while the service runs."""

    def __init__(self, zone: tzinfo, link: str = "", of: Mapping[str, Channel] | None = None) -> None:
        self.zone = zone
        """The lab's, for people who chose no other."""
        self.link = link
        """To the service, at the end of each message."""
        self.hosts: Sequence[str] = ()
        """At which people may have addresses of their own."""
        self._of = dict(of or {})

    def take(self, of: Mapping[str, Channel], hosts: Sequence[str]) -> None:
        self._of, self.hosts = dict(of), hosts

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._of)

    def get(self, name: str) -> Channel | None:
        return self._of.get(name)

    def why_not(self, name: str, address: str) -> str:
        """Why a person cannot be told there; empty: they can."""
        if name == MATRIX:
            is_room = address.startswith("!") and address.isascii() and address.isprintable() and " " not in address
            return "" if is_room and len(address) <= 255 else "expected the id of a room, which begins with “!”"
        return why_not(address, self.hosts)


POSTS: Mapping[str, Callable[[Message, str], ChatRequest]] = dict(
    zip(OWN, (posts.slack, posts.teams, posts.webhook), strict=True)
)


@dataclass(frozen=True, slots=True)
class OwnChannel:
    """Implements `Channel`: posts to an address of the person."""

    request: Callable[[Message, str], ChatRequest]
    http: aiohttp.ClientSession
    """That connects only to what `destinations` allows."""
    hosts: Sequence[str]

    async def send(self, message: Message, address: str) -> None:
        if why := why_not(address, self.hosts):
            raise Undelivered(why, is_final=True)
        await _check(self.http, self.request(message, address))


@dataclass(frozen=True, slots=True)
class MatrixChannel:
    """Implements `Channel`: writes into a room, as the lab's user, who accepts the invitation when it is needed."""

    homeserver: str
    token: str = field(repr=False)
    http: aiohttp.ClientSession

    async def send(self, message: Message, address: str) -> None:
        room = f"{self.homeserver.rstrip('/')}/_matrix/client/v3/rooms/{quote(address, safe='')}"
        request = posts.matrix(message, room, self.token)
        status = await _status(self.http, request)
        if status == FORBIDDEN:
            await _check(self.http, posts.matrix_join(room, self.token))
            status = await _status(self.http, request)
        _check_status(status)


@dataclass(frozen=True, slots=True)
class LabWebhook:
    """Implements `Channel`: posts everything about everybody to one address of the lab, signed."""

    url: str
    secret: str = field(repr=False)
    http: aiohttp.ClientSession
    now: Callable[[], datetime]

    async def send(self, message: Message, address: str) -> None:
        timestamp = int(self.now().timestamp())
        await _check(self.http, posts.signed_webhook(message, self.url, self.secret, timestamp))


async def _check(http: aiohttp.ClientSession, request: ChatRequest) -> None:
    _check_status(await _status(http, request))


def _check_status(status: int) -> None:
    if not 200 <= status < 300:
        raise Undelivered(f"answered {status}", is_final=status == GONE)


async def _status(http: aiohttp.ClientSession, request: ChatRequest) -> int:
    """Raises `Undelivered` if there is no answer."""
    try:
        async with http.request(
            request.method,
            as_given(request.url),
            data=request.body,
            headers=request.headers,
            timeout=TIMEOUT,
            allow_redirects=False,
        ) as answer:
            return answer.status
    except aiohttp.ClientConnectorError as error:  # it names the host, and not the path
        raise Undelivered(f"{type(error).__name__}: {error}") from None
    except (aiohttp.ClientError, ValueError, TimeoutError) as error:
        raise Undelivered(type(error).__name__) from None
