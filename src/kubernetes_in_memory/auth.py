"""Who calls, and what they may do: from tables that the embedder passes in.

Without tokens everybody is the administrator, as on a developer's own cluster. Tokens of ServiceAccounts may also be
issued (`token` subresource); they live as long as the process, or as the pod that they are bound to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes_in_memory.status import ApiError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, list[str]] = field(default_factory=dict)

    def as_json(self) -> Json:
        user: Json = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            user["uid"] = self.uid
        if self.extra:
            user["extra"] = dict(self.extra)
        return user


ADMIN = User("kubernetes-admin", groups=("system:masters", "system:authenticated"))
ANONYMOUS = User("system:anonymous", groups=("system:unauthenticated",))


def service_account(namespace: str, name: str, uid: str = "", extra: Mapping[str, list[str]] | None = None) -> User:
    """The user that a ServiceAccount's token stands for."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", uid, groups, extra or {})


@dataclass(frozen=True, slots=True)
class Ask:
    """May this user do that? Empty strings mean: any, or not given."""

    user: User
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    """For URLs that are no resource."""


Access = Callable[[Ask], bool]


def anything_goes(ask: Ask) -> bool:
    return True


def _always() -> bool:
    return True


class Doorkeeper:
    def __init__(self, tokens: Mapping[str, User] | None = None, may: Access = anything_goes) -> None:
        self._tokens = dict(tokens or {})
        self._lives: dict[str, Callable[[], bool]] = {}
        self._open = tokens is None
        self._may = may

    def who(self, headers: Mapping[str, str]) -> User:
        """The caller. Raises 401 for a token that nobody was given."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            user = self.known(token.strip())
            if user is not None:
                return user
            if not self._open:
                raise ApiError(401, "Unauthorized", "Unauthorized")
        return ADMIN if self._open else ANONYMOUS

    def known(self, token: str) -> User | None:
        return self._tokens.get(token) if self._lives.get(token, _always)() else None

    def issue(self, token: str, user: User, lives: Callable[[], bool]) -> None:
        """`lives`: whether what the token is bound to is still there."""
        self._tokens[token] = user
        self._lives[token] = lives

    def may(self, ask: Ask) -> bool:
        return "system:masters" in ask.user.groups or self._may(ask)

    def check(self, ask: Ask) -> None:
        if self.may(ask):
            return
        if ask.path:
            raise ApiError(403, "Forbidden", f'forbidden: User "{ask.user.name}" cannot {ask.verb} path "{ask.path}"')
        resource = f"{ask.resource}/{ask.subresource}" if ask.subresource else ask.resource
        what = f"{ask.resource}.{ask.group}" if ask.group else ask.resource
        named = f' "{ask.name}"' if ask.name else ""
        where = f'in the namespace "{ask.namespace}"' if ask.namespace else "at the cluster scope"
        raise ApiError(
            403,
            "Forbidden",
            f'{what}{named} is forbidden: User "{ask.user.name}" cannot {ask.verb} resource "{resource}" '
            f'in API group "{ask.group}" {where}',
            {"kind": ask.resource}
            | ({"name": ask.name} if ask.name else {})
            | ({"group": ask.group} if ask.group else {}),
        )
