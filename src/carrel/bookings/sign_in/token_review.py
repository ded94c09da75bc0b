"""Finds the person or service behind a Kubernetes token, by asking the API server (TokenReview).

A user whose name is an e-mail address is a person. A ServiceAccount counts only if the settings name it: anybody with
rights in a namespace can create ServiceAccounts, and would otherwise have as many bookings as names. Its token must be
bound to a pod, as the tokens of the kubelet are: the API server refuses it when the pod is gone. A token without an end
that is kept in a Secret is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

from carrel.bookings.people import How, Person
from carrel.bookings.sign_in.reviewed_tokens import ReviewedTokens
from carrel.bookings.sign_in.roles import RoleOptions
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.resources import TOKEN_REVIEWS
from carrel.parsing.addresses import is_address, lowered

POD_UID = "authentication.kubernetes.io/pod-uid"
"""The API server adds this to a token that is bound to a pod, after it has checked that the pod exists."""


@dataclass(frozen=True, slots=True)
class TokenReviewOptions:
    """What the settings say about tokens of the cluster."""

    audience: str = ""
    """If set, tokens must be made for it. Otherwise the API server's own tokens are accepted."""
    user_prefix: str = ""
    """The prefix of the names of OIDC users, such as `oidc:`."""


DEFAULT_OPTIONS = TokenReviewOptions()


class TokenReviewer:
    def __init__(
        self,
        cluster: Cluster,
        roles: RoleOptions,
        clock: Callable[[], float],
        options: TokenReviewOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._cluster = cluster
        self._roles = roles
        self._options = options
        self._reviewed: ReviewedTokens[Person] = ReviewedTokens(clock)

    async def person(self, token: str, address: str = "") -> Person | None:
        """None: the token is not valid here. Raises `ClusterError` if the API server does not answer, and a 429
        `Problem` if the address has sent too many tokens that are not valid."""
        return await self._reviewed.owner(token, address, self._review)

    async def _review(self, token: str) -> Person | None:
        spec = {"token": token, **({"audiences": [self._options.audience]} if self._options.audience else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._cluster.create(TOKEN_REVIEWS, body)).get("status", {})
        # A server that does not know audiences would omit them, and accept any token.
        if not status.get("authenticated") or (
            self._options.audience and self._options.audience not in status.get("audiences", ())
        ):
            return None
        user = status.get("user", {})
        username = str(user.get("username", ""))
        if roles := self._roles.by_account(username):
            is_bound = POD_UID in (user.get("extra") or {})
            return Person(username, roles=roles, how=How.SERVICE_ACCOUNT) if is_bound else None
        return self._person(username, [str(each) for each in user.get("groups") or ()])

    def _person(self, username: str, groups: list[str]) -> Person | None:
        name = lowered(username.removeprefix(self._options.user_prefix))
        if not username.startswith(self._options.user_prefix) or not is_address(name):
            return None
        roles = self._roles.by_groups(groups)
        return Person(name, roles=roles, how=How.SERVICE_ACCOUNT, groups=frozenset(groups))
