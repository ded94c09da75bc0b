"""Recognises who holds a Kubernetes token, by asking the API server (TokenReview).

An answer is remembered for a minute, so that a busy caller costs one review; a token that was revoked in the cluster
works so much longer. What could be a person is: a user whose name is an address. What could be made by anybody with
rights in a namespace, a ServiceAccount, is only what the settings name, or its creator would have as many bookings
as names. Its token must be bound to a pod, as the kubelet's are: the API server refuses it when the pod is gone, and
one that was kept in a Secret for years is worth nothing here.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from carrel.bookings.people import How, Person, Role, is_address, normal
from carrel.bookings.sign_in.roles import RoleBook
from carrel.bookings.sign_in.secrets import hashed
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.resources import TOKEN_REVIEWS

REMEMBERED_S = 60.0
MOST_REMEMBERED = 1_000
POD_UID = "authentication.kubernetes.io/pod-uid"
"""What the API server says about a token that is bound to a pod; it has looked whether that pod is still there."""


@dataclass(frozen=True, slots=True)
class Vouching:
    """What the settings say about Kubernetes' word."""

    audience: str = ""
    """If given, tokens must be made for it; else the API server's own are accepted."""
    user_prefix: str = ""
    """What the API server puts before the names of its OIDC users, such as `oidc:`."""


@dataclass(slots=True)
class Kubernetes:
    cluster: Cluster
    roles: RoleBook
    clock: Callable[[], float]
    vouching: Vouching = Vouching()
    _remembered: OrderedDict[str, tuple[float, Person | None]] = field(default_factory=OrderedDict)

    async def person(self, token: str) -> Person | None:
        """Raises `ClusterError` if the API server does not answer: that is not the caller's fault."""
        key = hashed(token)
        known = self._remembered.get(key)
        if known and self.clock() - known[0] < REMEMBERED_S:
            return known[1]
        person = await self._review(token)
        self._remembered[key] = (self.clock(), person)
        self._remembered.move_to_end(key)
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return person

    async def _review(self, token: str) -> Person | None:
        spec = {"token": token, **({"audiences": [self.vouching.audience]} if self.vouching.audience else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self.cluster.create(TOKEN_REVIEWS, body)).get("status", {})
        # A server that does not know about audiences would leave them out, and vouch for any token.
        if not status.get("authenticated") or (
            self.vouching.audience and self.vouching.audience not in status.get("audiences", ())
        ):
            return None
        user = status.get("user", {})
        username = str(user.get("username", ""))
        if username in self.roles.services:
            is_bound = POD_UID in (user.get("extra") or {})
            return Person(username, roles=frozenset({Role.SERVICE}), how=How.SERVICE_ACCOUNT) if is_bound else None
        return self._person(username, [str(each) for each in user.get("groups") or ()])

    def _person(self, username: str, groups: list[str]) -> Person | None:
        name = normal(username.removeprefix(self.vouching.user_prefix))
        if not username.startswith(self.vouching.user_prefix) or not is_address(name):
            return None
        return Person(name, roles=self.roles.by_groups(groups), how=How.SERVICE_ACCOUNT)
