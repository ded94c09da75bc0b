"""How other components ask the booking service, and what they remember of its answers.

    POST /api/v1/booking-status  {user, namespace}  →  {tier, ends, model, gpus, id}

Which service it is follows from the address: this is Carrel's own route, and its answer has the number of GPUs; any
other address speaks MAIA's JSON, which has not: the configuration says for how many GPUs such a booking stands.
Anything else than the expected answer counts as no answer. The token is in no message and no log.
"""

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp

from carrel.dialects.booking_objects import MAIA_IDS, person_named
from carrel.dialects.maia import SCHEDULABILITY_PATH, Enquiry, read_verdict, write_enquiry
from carrel.ledger.tiers import Tier
from carrel.parsing import Malformed
from carrel.parsing.fields import Field
from carrel.parsing.time import instant, seconds

STATUS_PATH = "/api/v1/booking-status"


@dataclass(frozen=True, slots=True)
class BookingStatus:
    """Without arguments: the person has no active booking."""

    ends: datetime | None = None
    """When the active booking ends; None: there is none."""
    model: str = ""
    gpus: int = 0
    id: str = ""
    """The active booking's; MAIA's have none: `id_without_name`."""

    @property
    def tier(self) -> Tier:
        return Tier.OPPORTUNISTIC if self.ends is None else Tier.BOOKED


def id_without_name(user: str, model: str) -> str:
    """For a booking whose service gives no id, as MAIA's does: the same person and model always have the same one."""
    words = "\n".join((person_named(user), model))
    return f"{MAIA_IDS}{hashlib.sha256(words.encode()).hexdigest()[:24]}"


def read_status(body: object) -> BookingStatus:
    """Raises `Malformed`."""
    field = Field(body, "booking status")
    tier = field["tier"].some_text()
    if tier not in {each.value for each in Tier}:
        raise field["tier"].malformed("booked or opportunistic")
    if Tier(tier) is Tier.OPPORTUNISTIC:
        return BookingStatus()
    ends = instant(field["ends"].some_text(), field.subject, "ends")
    return BookingStatus(ends, field["model"].text(), field["gpus"].integer(), field["id"].some_text())


def write_status(status: BookingStatus) -> dict[str, Any]:
    ends = seconds(status.ends) if status.ends else None
    return {"tier": status.tier.value, "ends": ends, "model": status.model, "gpus": status.gpus, "id": status.id}


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """What the booking service last answered."""

    value: BookingStatus | None
    """None: there is no answer that is recent enough to be used."""
    age_s: float = 0.0
    failure: str = ""
    """Why there is no newer answer; empty if the answer is up to date."""
    was_answered: bool = False
    """Whether the failure was an answer that cannot be used, and no silence."""


class BookingLookup(Protocol):
    async def status(self, user: str, namespace: str) -> CachedAnswer:
        """Has this person an active booking now?"""
        ...


class NoAnswer(Exception):
    """The booking service is down, slow, or answers something else than was asked. The message is a sentence."""

    was_answered = False
    """Whether something came, which cannot be used."""


class Declined(NoAnswer):
    """It answered, but not this question: the next question may be answered."""

    was_answered = True


class UnknownForm(NoAnswer):
    """It answered something else than the booking service does, as a proxy's page for signing in."""

    was_answered = True


class BookingService(Protocol):
    """Asks anew each time. Raises `NoAnswer` and nothing else."""

    async def status(self, user: str, namespace: str) -> BookingStatus: ...


LARGEST_ANSWER = 4 * 1024 * 1024
TIMEOUT_S = 2.0
"""Well below the time that the API server waits for a webhook: a slow booking service must not get a pod refused."""


@dataclass(frozen=True, slots=True)
class BookingAddress:
    api_url: str
    token: str = field(default="", repr=False)


class BookingStatusClient:
    """Implements `bookings.client.BookingService`."""

    def __init__(
        self, address: BookingAddress, timeout_s: float = TIMEOUT_S, *, maia_gpus: Callable[[], int] = lambda: 1
    ) -> None:
        """`maia_gpus`: for how many GPUs a booking in MAIA's dashboard stands."""
        self._address = address
        self._maia_gpus = maia_gpus
        self._url, self._is_own_route = _route(address.api_url)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def status(self, user: str, namespace: str) -> BookingStatus:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._is_own_route:
                    return read_status(await self._ask({"user": user, "namespace": namespace}))
                enquiry = write_enquiry(Enquiry(user, namespace, self._address.token))
                return _status_of_maia(await self._ask(enquiry), user, self._maia_gpus())
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


def _status_of_maia(answer: object, user: str, gpus: int) -> BookingStatus:
    verdict = read_verdict(answer)
    if not verdict.schedulable:
        return BookingStatus()
    return BookingStatus(verdict.until, verdict.model, gpus, id=id_without_name(user, verdict.model))


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


log = logging.getLogger(__name__)

V = TypeVar("V")

MAX_CACHED = 10_000
"""More than there are people in a lab: invented names must not fill the memory."""


@dataclass(frozen=True, slots=True)
class CacheTiming:
    fresh_s: float = 5.0
    """A new booking counts after this time at the latest."""
    usable_s: float = 300.0
    """How old an answer may be while the service does not answer."""
    pause_s: float = 5.0
    """How long nobody asks after a failure."""


class Question(NamedTuple):
    user: str
    namespace: str


class _CachedEntry(NamedTuple):
    answer: BookingStatus
    at: float


class _Pause(NamedTuple):
    until: float = float("-inf")
    why: str = ""
    was_answered: bool = False


class BookingCache:
    """Asks the booking service, no more often than needed. It never raises: when the service is down, it answers with
    what is still known, and with the reason.

    - An answer is fresh for some seconds: a notebook server that starts ten pods asks once.
    - Of several callers that ask the same question at once, one asks the service.
    - After a failure nobody asks for a moment, so that a service that is down does not slow down the creation of pods.
      Meanwhile the last answer is used, but not for longer than `usable_s`.
    - A declined question only delays itself: otherwise one bad question would cost everybody else their booking.
    """

    def __init__(self, service: BookingService, clock: Callable[[], float], timing: CacheTiming | None = None) -> None:
        self._service = service
        self._clock = clock
        self._timing = timing or CacheTiming()
        self._answers: OrderedDict[Question, _CachedEntry] = OrderedDict()
        self._under_way: dict[Question, asyncio.Future[None]] = {}
        self._declined: OrderedDict[Question, _Pause] = OrderedDict()
        self._pause = _Pause()
        self.failures = 0
        self.oldest_s = 0.0
        """The age of the oldest answer that was used since the service last answered."""

    async def status(self, user: str, namespace: str) -> CachedAnswer:
        question = Question(user, namespace)
        # In a loop: the caller that asked for all of us may have been cancelled.
        while self._age(question) > self._timing.fresh_s and self._clock() >= self._pause_of(question).until:
            await self._ask_once(question)
        age, pause = self._age(question), self._pause_of(question)
        if age <= self._timing.fresh_s:
            return CachedAnswer(self._answers[question].answer, age)
        if age <= self._timing.usable_s:
            self.oldest_s = max(self.oldest_s, age)
            return CachedAnswer(self._answers[question].answer, age, pause.why, pause.was_answered)
        return CachedAnswer(None, failure=pause.why, was_answered=pause.was_answered)

    async def _ask_once(self, question: Question) -> None:
        if (asked := self._under_way.get(question)) is not None:
            await asyncio.shield(asked)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[question] = done
        try:
            answer = await self._service.status(question.user, question.namespace)
        except NoAnswer as no_answer:
            self._note_failure(question, no_answer)
        else:
            self.oldest_s = 0.0
            _remember(self._answers, question, _CachedEntry(answer, self._clock()))
        finally:
            del self._under_way[question]
            done.set_result(None)

    def _note_failure(self, question: Question, no_answer: NoAnswer) -> None:
        self.failures += 1
        pause = _Pause(self._clock() + self._timing.pause_s, str(no_answer), no_answer.was_answered)
        if isinstance(no_answer, Declined):
            _remember(self._declined, question, pause)
        else:
            self._pause = pause
        log.warning("booking_service_failed why=%r", pause.why)

    def _pause_of(self, question: Question) -> _Pause:
        """The longer of the two."""
        return max(self._pause, self._declined.get(question, _Pause()))

    def _age(self, question: Question) -> float:
        return self._clock() - self._answers[question].at if question in self._answers else float("inf")


def _remember(kept: OrderedDict[Question, V], question: Question, what: V) -> None:
    kept[question] = what
    kept.move_to_end(question)
    while len(kept) > MAX_CACHED:
        kept.popitem(last=False)
