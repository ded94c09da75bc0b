"""Asks the booking service over HTTP: Carrel's own, or any service that speaks MAIA's JSON.

Which of the two follows from the address: Carrel's own route is `/api/v1/booking-status`, and its answer has the number
of GPUs; MAIA's JSON has not. Anything else than the expected answer counts as no answer. The token is in no message
and no log.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from carrel.bookings.client.interface import Declined, NoAnswer, UnknownForm
from carrel.bookings.client.status import STATUS_PATH, BookingStatus, id_without_name, read_status
from carrel.dialects.maia import SCHEDULABILITY_PATH, Enquiry, read_verdict, write_enquiry
from carrel.parsing import Malformed

LARGEST_ANSWER = 4 * 1024 * 1024
TIMEOUT_S = 2.0
"""Well below the time that the API server waits for a webhook: a slow booking service must not get a pod refused."""


@dataclass(frozen=True, slots=True)
class BookingAddress:
    api_url: str
    token: str = field(default="", repr=False)


class BookingStatusClient:
    """Implements `bookings.client.interface.BookingService`."""

    def __init__(self, address: BookingAddress, timeout_s: float = TIMEOUT_S) -> None:
        self._address = address
        self._url, self._is_own_route = _route(address.api_url)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def status(self, user: str, namespace: str) -> BookingStatus:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._is_own_route:
                    return read_status(await self._ask({"user": user, "namespace": namespace}))
                enquiry = write_enquiry(Enquiry(user, namespace, self._address.token))
                return _status_of_maia(await self._ask(enquiry), user)
        except Malformed as malformed:
            raise Declined(str(malformed)) from None
        except TimeoutError:
            raise NoAnswer(f"{self._address.api_url} did not answer in time") from None

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, question: Mapping[str, Any]) -> Any:
        url = self._url
        if self._session is None:
            headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        try:
            # Redirects are not followed: the request has the token in it.
            async with self._session.post(url, json=question, allow_redirects=False) as answer:
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
            raise UnknownForm(f"{url} answered something that is not JSON") from None


def _status_of_maia(answer: object, user: str) -> BookingStatus:
    verdict = read_verdict(answer)
    if not verdict.schedulable:
        return BookingStatus()
    return BookingStatus(verdict.until, verdict.model, gpus=1, id=id_without_name(user, verdict.model))


def _route(url: str) -> tuple[str, bool]:
    """Return the address to ask, and whether it is Carrel's own route. MAIA's dashboard redirects a POST without the
    slash at the end."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, False
    path = parts.path.rstrip("/")
    if path.endswith(SCHEDULABILITY_PATH.rstrip("/").rpartition("/")[2]):
        return parts._replace(path=f"{path}/").geturl(), False
    if not path.endswith(STATUS_PATH):
        return url, False
    return parts._replace(path=path).geturl(), True
