"""Who is behind a token that somebody else must be asked about: the cluster, or a hub.

An answer is remembered for a minute, so that a busy caller costs one question; a token that was revoked there works for
that minute. A token that nobody knows costs a question too, and anybody can make up as many as they like. So each
address may ask about a limited number of made-up tokens, and these do not take the place of good ones. A good token
costs nothing, and is asked about once, however many calls come with it at the same time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from carrel.bookings.sign_in.rate_limiter import Rate, RateLimiter
from carrel.bookings.sign_in.request_guard import too_many
from carrel.bookings.sign_in.secrets import hashed

CACHED_S = 60.0
MAX_CACHED = 1_000
UNKNOWN_TOKENS = Rate(per_second=5, burst=200)
"""Per address. A whole lab may come from one address, and start in the same minute."""

Owner = TypeVar("Owner")


class ReviewedTokens(Generic[Owner]):
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._unknown = RateLimiter(UNKNOWN_TOKENS, clock)
        self._good: OrderedDict[str, tuple[float, Owner]] = OrderedDict()
        self._bad: OrderedDict[str, float] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Owner | None]] = {}

    async def owner(self, token: str, address: str, ask: Callable[[str], Awaitable[Owner | None]]) -> Owner | None:
        """None: the token is not valid. Raises what `ask` raises, and a 429 `Problem` if this address has asked about
        too many tokens."""
        key, now = hashed(token), self._clock()
        known = self._good.get(key)
        if known is not None and now - known[0] < CACHED_S:
            return known[1]
        if key in self._bad and now - self._bad[key] < CACHED_S:
            return None
        if key not in self._asking:
            if known is None and (wait_s := self._unknown.wait_s(address)):
                raise too_many(wait_s)
            self._asking[key] = asyncio.create_task(self._ask(key, token, address, ask))
        return await asyncio.shield(self._asking[key])

    async def _ask(
        self, key: str, token: str, address: str, ask: Callable[[str], Awaitable[Owner | None]]
    ) -> Owner | None:
        try:
            owner, now, was_good = await ask(token), self._clock(), key in self._good
            self._good.pop(key, None)
            self._bad.pop(key, None)
            if owner is None:
                _keep(self._bad, key, now)
            else:
                _keep(self._good, key, (now, owner))
                if not was_good:
                    self._unknown.give_back(address)
            return owner
        finally:
            del self._asking[key]


def _keep(kept: "OrderedDict[str, Owner]", key: str, value: Owner) -> None:
    kept[key] = value
    if len(kept) > MAX_CACHED:
        kept.popitem(last=False)
