"""Asks the booking service over HTTP: Carrel's own, or any service that speaks MAIA's JSON.

Which of the two follows from the address: Carrel's own route is `/api/v1/booking-status`, and its answer has the number
of GPUs; MAIA's JSON has not. A booking service that is older than Carrel's own route answers 404 there: then MAIA's
route of the same service is asked, so that components may be upgraded in any order. Anything else than the expected
answer counts as no answer. The token is in no message and no log.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
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
OWN_ROUTE_AGAIN_S = 120.0
"""How long MAIA's route is asked after Carrel's own was missing. Not for ever: the service may have been upgraded."""


@dataclass(frozen=True, slots=True)
class BookingAddress:
    api_url: str
    token: str = field(default="", repr=False)


class _NotFound(Declined):
    """There is no such route."""


class BookingStatusClient:
    """Implements `bookings.client.interface.BookingService`."""

    def __init__(
        self, address: BookingAddress, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._own_url, self._maia_url = _routes(address.api_url)
        self._timeout_s = timeout_s
        self._clock = clock
        self._own_again_at = float("-inf")
        self._session: aiohttp.ClientSession | None = None

    async def status(self, user: str, namespace: str) -> BookingStatus:
        try:
            async with asyncio.timeout(self._timeout_s):  # for both routes together
                return await self._status(user, namespace)
        except Malformed as malformed:
            raise Declined(str(malformed)) from None
        except TimeoutError:
            raise NoAnswer(f"{self._address.api_url} did not answer in time") from None

    async def _status(self, user: str, namespace: str) -> BookingStatus:
        is_missing = False
        if self._own_url and self._clock() >= self._own_again_at:
            try:
                question = {"user": user, "namespace": namespace}
                return read_status(await self._call("POST", self._own_url, question), user)
            except _NotFound:
                is_missing = True
        enquiry = write_enquiry(Enquiry(user, namespace, self._address.token))
        status = _status_of_maia(await self._call("POST", self._maia_url, enquiry), user)
        if is_missing:
            self._own_again_at = self._clock() + OWN_ROUTE_AGAIN_S
        return status

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        if self._session is None:
            headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        try:
            # Redirects are not followed: the request has the token in it.
            async with self._session.request(method, url, json=body, allow_redirects=False) as answer:
                if answer.status == 404:
                    raise _NotFound(f"{url} answered 404")
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


def _routes(url: str) -> tuple[str, str]:
    """The URL of Carrel's own route, empty if the address is not one of it, and the URL for MAIA's JSON."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", url
    path = parts.path.rstrip("/")
    if path.endswith(SCHEDULABILITY_PATH.rstrip("/").rpartition("/")[2]):
        return "", parts._replace(path=f"{path}/").geturl()  # MAIA's dashboard redirects a POST without the slash
    if not path.endswith(STATUS_PATH):
        return "", url
    maia_path = path.removesuffix(STATUS_PATH) + SCHEDULABILITY_PATH
    return parts._replace(path=path).geturl(), parts._replace(path=maia_path).geturl()
