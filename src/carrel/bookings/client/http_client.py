"""Asks the booking service over HTTP: Carrel's own, or any service that speaks MAIA's JSON.

Which of the two follows from the address: Carrel's own route is `/api/v1/booking-status`, and its answer has the number
of GPUs; MAIA's JSON has not. Anything else than the expected answer counts as no answer. The token is in no message and
no log.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from carrel.bookings.client.interface import Declined, NoAnswer
from carrel.bookings.client.status import STATUS_PATH, BookingStatus, read_status
from carrel.dialects.maia import Enquiry, read_free, read_verdict, write_enquiry
from carrel.parsing import Malformed

LARGEST_ANSWER = 4 * 1024 * 1024
TIMEOUT_S = 2.0
"""Well below the time that the API server waits for a webhook: a slow booking service must not get a pod refused."""


@dataclass(frozen=True, slots=True)
class BookingAddress:
    api_url: str
    stats_url: str
    """Where free GPUs are asked for, in MAIA's JSON; empty: nowhere."""
    token: str = field(default="", repr=False)


class BookingClient:
    """Implements `bookings.client.interface.BookingService`."""

    def __init__(self, address: BookingAddress, timeout_s: float = TIMEOUT_S) -> None:
        self._address = address
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def status(self, user: str, namespace: str) -> BookingStatus:
        address = self._address
        is_own = _path(address.api_url).rstrip("/").endswith(STATUS_PATH)
        own, maias = {"user": user, "namespace": namespace}, write_enquiry(Enquiry(user, namespace, address.token))
        answer = await self._call("POST", address.api_url, own if is_own else maias)
        try:
            return read_status(answer) if is_own else _status_of_maia(answer)
        except Malformed as malformed:
            raise Declined(str(malformed)) from None

    async def free(self) -> Mapping[str, int]:
        if not self._address.stats_url:
            return {}
        answer = await self._call("GET", self._address.stats_url)
        try:
            return read_free(answer)
        except Malformed as malformed:
            raise Declined(str(malformed)) from None

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        if self._session is None:
            headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=headers)
        try:
            # Redirects are not followed: the request has the token in it.
            async with self._session.request(method, url, json=body, allow_redirects=False) as answer:
                if 400 <= answer.status < 500:
                    raise Declined(f"{url} answered {answer.status}")
                if answer.status != 200:
                    raise NoAnswer(f"{url} answered {answer.status}")
                received = b""
                async for chunk in answer.content.iter_any():
                    received += chunk
                    if len(received) > LARGEST_ANSWER:
                        raise NoAnswer(f"{url} answered more than {LARGEST_ANSWER} bytes")
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a time-out is an OSError
            raise NoAnswer(f"{url} did not answer: {str(error) or type(error).__name__}") from None
        try:
            return json.loads(received)
        except (ValueError, RecursionError):
            raise NoAnswer(f"{url} answered something that is not JSON") from None


def _status_of_maia(answer: object) -> BookingStatus:
    verdict = read_verdict(answer)
    return BookingStatus(verdict.until, verdict.model, gpus=1) if verdict.schedulable else BookingStatus()


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:
        return ""
