"""Finds the person or service behind a Kubernetes token, by asking the API server (TokenReview).

A user whose name is an e-mail address is a person. A ServiceAccount counts only if the settings name it: anybody with
rights in a namespace can create ServiceAccounts, and would otherwise have as many bookings as names. Its token must be
bound to a pod, as the tokens of the kubelet are: the API server refuses it when the pod is gone. A token without an end
that is kept in a Secret is refused.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from carrel.bookings.people import How, Person, RoleOptions
from carrel.bookings.sign_in.request_guard import Rate, RateLimiter, too_many
from carrel.bookings.sign_in.secrets import hashed
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.resources import TOKEN_REVIEWS
from carrel.parsing.addresses import is_address, lowered

CACHED_S = 60.0
MAX_CACHED = 1_000
UNKNOWN_TOKENS = Rate(per_second=5, burst=200)
"""Per address. A whole lab may come from one address, and start in the same minute."""

Owner = TypeVar("Owner")


class ReviewedTokens(Generic[Owner]):
    """Knows who is behind a token that somebody else must be asked about: the cluster, or a hub.

    An answer is remembered for a minute, so that a busy caller costs one question; a token that was revoked there works
    for that minute. A token that nobody knows costs a question too, and anybody can make up as many as they like. So
    each address may ask about a limited number of made-up tokens, and these do not take the place of good ones. A good
    token costs nothing, and is asked about once, however many calls come with it at the same time.
    """

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


POD_UID = "authentication.kubernetes.io/pod-uid"
"""The API server adds this to a token that is bound to a pod, after it has checked that the pod exists."""


class TokenReviewer:
    def __init__(
        self,
        cluster: Cluster,
        roles: RoleOptions,
        clock: Callable[[], float],
        audience: str = "",
        user_prefix: str = "",
    ) -> None:
        """With an audience, tokens must be made for it; otherwise the API server's own are accepted. `user_prefix` is
        what the names of OIDC users begin with, such as `oidc:`."""
        self._cluster = cluster
        self._roles = roles
        self._audience, self._user_prefix = audience, user_prefix
        self._reviewed: ReviewedTokens[Person] = ReviewedTokens(clock)

    async def person(self, token: str, address: str = "") -> Person | None:
        """None: the token is not valid here. Raises `ClusterError` if the API server does not answer, and a 429
        `Problem` if the address has sent too many tokens that are not valid."""
        return await self._reviewed.owner(token, address, self._review)

    async def _review(self, token: str) -> Person | None:
        spec = {"token": token, **({"audiences": [self._audience]} if self._audience else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._cluster.create(TOKEN_REVIEWS, body)).get("status", {})
        # A server that does not know audiences would omit them, and accept any token.
        if not status.get("authenticated") or (self._audience and self._audience not in status.get("audiences", ())):
            return None
        user = status.get("user", {})
        username = str(user.get("username", ""))
        if roles := self._roles.by_account(username):
            is_bound = POD_UID in (user.get("extra") or {})
            return Person(username, roles=roles, how=How.SERVICE_ACCOUNT) if is_bound else None
        return self._person(username, [str(each) for each in user.get("groups") or ()])

    def _person(self, username: str, groups: list[str]) -> Person | None:
        name = lowered(username.removeprefix(self._user_prefix))
        if not username.startswith(self._user_prefix) or not is_address(name):
            return None
        roles = self._roles.by_groups(groups)
        return Person(name, roles=roles, how=How.SERVICE_ACCOUNT, groups=frozenset(groups))
