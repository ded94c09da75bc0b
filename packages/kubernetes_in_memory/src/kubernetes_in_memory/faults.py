"""Injects faults by seed: refused writes, lost answers, stale lists, cut and delayed watches, crashes.

One seed is one run: what happens to the n-th call and to the n-th watch depends only on the seed and on n, so a failing
run is repeated by its seed, and `story` lists the faults. Kubernetes' own guarantees hold: the events of one watch stay
in order, and a stream that ended can be resumed from the last version seen.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import msgspec

from kubernetes_in_memory import status
from kubernetes_in_memory.auth import ADMIN
from kubernetes_in_memory.handler import EmbeddedApi
from kubernetes_in_memory.messages import HttpRequest, HttpResponse, RequestLike
from kubernetes_in_memory.request_info import call_of
from kubernetes_in_memory.store import encode

WRITES = ("POST", "PUT", "PATCH", "DELETE")


class AnswerLost(ConnectionError):
    """The write took effect, and the client does not know it."""


class Crashed(BaseException):
    """The process crashed here, and nothing in it handles that. Its earlier writes are stored; it sends no more
    calls."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How often each fault happens: probabilities from 0 (never) to 1 (always)."""

    seed: int
    crash_after_write: int = 0
    """The process crashes right after its k-th write took effect. 0: never."""
    refuse: float = 0.0
    """A write is answered with 409 (not on create), 429 or 500, and nothing is written."""
    lose_answer: float = 0.0
    """A write takes effect, and its answer never arrives."""
    stale_list: float = 0.0
    """A list shows an older state."""
    stale_by: int = 50
    """At most so many versions older."""
    drop_watch: float = 0.0
    """For each event: the stream ends before it."""
    double_event: float = 0.0
    """For each event: it is sent twice."""
    delay_event: float = 0.0
    """For each event: it is sent late, so after newer events of other watches."""
    longest_delay_s: float = 0.05
    expire_watch: float = 0.0
    """A watch starts with 410: half of them as the HTTP status, half as an ERROR event in an open stream."""


class Faulty:
    """Stands in front of the embedded API. Each process of a test gets its own."""

    def __init__(
        self,
        api: EmbeddedApi,
        plan: FaultPlan,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        answer_lost: Callable[[str], Exception] = AnswerLost,
    ) -> None:
        """`answer_lost` makes the error that the client under test knows as a lost answer."""
        self._api = api
        self._plan = plan
        self._sleep = sleep
        self._answer_lost = answer_lost
        self._calls = 0
        self._watches = 0
        self._dead = False
        self.writes = 0
        """How many writes took effect: a test can plan a crash after each of them."""
        self.story: list[str] = []

    async def send(self, request: RequestLike) -> HttpResponse:
        if self._dead:
            raise Crashed("a crashed process sends no calls")
        if request.method in WRITES:
            return await self._write(request, self._next_chance())
        if request.query.get("watch", "").lower() in ("true", "1"):
            return await self._watch(request)
        return await self._read(request, self._next_chance())

    async def aclose(self) -> None:
        """The API belongs to the test, not to this process."""

    def _next_chance(self) -> random.Random:
        self._calls += 1
        return random.Random(f"{self._plan.seed}/call/{self._calls}")  # noqa: S311 - not a secret

    def _record(self, request: RequestLike, what: str) -> None:
        self.story.append(f"call {self._calls}, {request.method} {request.path}: {what}")

    async def _write(self, request: RequestLike, chance: random.Random) -> HttpResponse:
        if chance.random() < self._plan.refuse:
            refusal = chance.choice(_refusals(request))
            self._record(request, f"refused with {refusal.code}")
            return HttpResponse(refusal.code, encode(refusal.status()), {"content-type": "application/json"})
        answer = await self._api.send(request)
        if answer.status >= 400 or request.query.get("dryRun"):
            return answer
        self.writes += 1
        if self.writes == self._plan.crash_after_write:
            self._dead = True
            self._record(request, f"crashed after write {self.writes}")
            raise Crashed(f"after write {self.writes}: {request.method} {request.path}")
        if chance.random() < self._plan.lose_answer:
            self._record(request, "took effect; the answer was lost")
            raise self._answer_lost(f"{request.method} {request.path}: no answer; it may have taken effect")
        return answer

    async def _read(self, request: RequestLike, chance: random.Random) -> HttpResponse:
        fresh = "resourceVersionMatch" not in request.query and not request.query.get("continue")
        if not fresh or chance.random() >= self._plan.stale_list:
            return await self._api.send(request)
        try:
            call = call_of(request, self._api.kinds, ADMIN)
        except status.ApiError:
            return await self._api.send(request)
        if call.target.name:
            return await self._api.send(request)
        now = self._api.store.version
        oldest = max(self._api.store.collection(call.kind.storage).forgotten, now - self._plan.stale_by)
        version = chance.randint(oldest, now)
        self._record(request, f"listed as of version {version}, {now - version} old")
        older = {**request.query, "resourceVersion": str(version), "resourceVersionMatch": "Exact"}
        return await self._api.send(HttpRequest(request.method, request.path, older, request.headers, request.body))

    async def _watch(self, request: RequestLike) -> HttpResponse:
        self._watches += 1
        chance = random.Random(f"{self._plan.seed}/watch/{self._watches}")  # noqa: S311 - not a secret
        if chance.random() < self._plan.expire_watch:
            gone = encode(status.expired("too old resource version: the history was forgotten").status())
            headers = {"content-type": "application/json"}
            if chance.random() < 0.5:
                self._record(request, f"watch {self._watches}: 410 as status")
                return HttpResponse(410, gone, headers)
            self._record(request, f"watch {self._watches}: 410 as event")
            return HttpResponse(200, headers=headers, stream=_only(b'{"type":"ERROR","object":' + gone + b"}\n"))
        answer = await self._api.send(request)
        if answer.stream is None:
            return answer
        return msgspec.structs.replace(
            answer, stream=self._disturbed(answer.stream, f"watch {self._watches} of {request.path}", chance)
        )

    async def _disturbed(
        self, stream: AsyncGenerator[bytes, None], name: str, chance: random.Random
    ) -> AsyncGenerator[bytes, None]:
        number = 0
        try:
            async for chunk in stream:
                for line in chunk.splitlines(keepends=True):
                    number += 1
                    if chance.random() < self._plan.drop_watch:
                        self.story.append(f"{name}: ended before event {number}")
                        return
                    if chance.random() < self._plan.delay_event:
                        self.story.append(f"{name}: event {number} was late")
                        await self._sleep(chance.uniform(0, self._plan.longest_delay_s))
                    yield line
                    if chance.random() < self._plan.double_event:
                        self.story.append(f"{name}: event {number} came twice")
                        yield line
        finally:
            await stream.aclose()


async def _only(line: bytes) -> AsyncGenerator[bytes, None]:
    yield line


def _refusals(request: RequestLike) -> list[status.ApiError]:
    # Without Retry-After: the client reports it to its caller, as after too many retries.
    busy = status.ApiError(429, "TooManyRequests", "the server is busy; try again")
    broken = status.ApiError(500, "InternalError", "Internal error occurred: the storage did not answer")
    changed = status.ApiError(409, "Conflict", f"Operation cannot be fulfilled on {request.path}: {status.MODIFIED}")
    return [busy, broken] if request.method == "POST" else [busy, broken, changed]
