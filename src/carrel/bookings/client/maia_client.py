"""The booking service over HTTP, in MAIA's JSON: MAIA's dashboard, or Carrel's own.

POST <api_url> {user_email, namespace, token}, GET <stats_url>. Whatever is not the expected answer is no answer. The
token is in no message and no log.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from carrel.bookings.client.interface import Declined, NoAnswer
from carrel.dialects.maia import Enquiry, Verdict, read_free, read_verdict, write_enquiry
from carrel.parsing import Malformed

MAX_ANSWER = 4 * 1024 * 1024
TIMEOUT_S = 2.0
"""Well below what the API server waits for a webhook: a pod must not be refused because the booking service is slow."""


@dataclass(frozen=True, slots=True)
class Where:
    api_url: str
    stats_url: str
    token: str = field(default="", repr=False)


class MaiaClient:
    def __init__(self, where: Where, timeout_s: float = TIMEOUT_S) -> None:
        self._where = where
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def verdict(self, user: str, namespace: str) -> Verdict:
        body = write_enquiry(Enquiry(user, namespace, self._where.token))
        said = await self._call("POST", self._where.api_url, body)
        try:
            return read_verdict(said)
        except Malformed as malformed:
            raise Declined(str(malformed)) from None

    async def free(self) -> Mapping[str, int]:
        if not self._where.stats_url:
            return {}
        said = await self._call("GET", self._where.stats_url)
        try:
            return read_free(said)
        except Malformed as malformed:
            raise Declined(str(malformed)) from None

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        if self._session is None:
            headers = {"Authorization": f"Bearer {self._where.token}"} if self._where.token else {}
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=headers)
        try:
            # Redirects are not followed: the body has the token in it.
            async with self._session.request(method, url, json=body, allow_redirects=False) as answer:
                if 400 <= answer.status < 500:
                    raise Declined(f"{url} answered {answer.status}")
                if answer.status != 200:
                    raise NoAnswer(f"{url} answered {answer.status}")
                said = b""
                async for chunk in answer.content.iter_any():
                    said += chunk
                    if len(said) > MAX_ANSWER:
                        raise NoAnswer(f"{url} answered more than {MAX_ANSWER} bytes")
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a time-out is an OSError
            raise NoAnswer(f"{url} did not answer: {str(error) or type(error).__name__}") from None
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            raise NoAnswer(f"{url} answered something that is not JSON") from None
