"""Authentication and authorization, from tables that the caller of the package passes in.

Without tokens everybody is the administrator, as on a developer's own cluster. Tokens of ServiceAccounts may also be
issued (`token` subresource); they are valid as long as the process runs, or as the pod exists that they are bound to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes_in_memory.status import ApiError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UserInfo:
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


ADMIN = UserInfo("kubernetes-admin", groups=("system:masters", "system:authenticated"))
ANONYMOUS = UserInfo("system:anonymous", groups=("system:unauthenticated",))


def service_account(namespace: str, name: str, uid: str = "", extra: Mapping[str, list[str]] | None = None) -> UserInfo:
    """The user of a ServiceAccount's token."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return UserInfo(f"system:serviceaccount:{namespace}:{name}", uid, groups, extra or {})


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """What a user wants to do. Empty strings mean: any, or not given."""

    user: UserInfo
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    """For URLs that name no resource."""


Access = Callable[[AccessRequest], bool]


def allow_everything(ask: AccessRequest) -> bool:
    return True


def _always() -> bool:
    return True


class AccessControl:
    def __init__(self, tokens: Mapping[str, UserInfo] | None = None, may: Access = allow_everything) -> None:
        self._tokens = dict(tokens or {})
        self._is_valid: dict[str, Callable[[], bool]] = {}
        self._open = tokens is None
        self._may = may

    def user_of(self, headers: Mapping[str, str]) -> UserInfo:
        """The user who calls. Raises 401 for an unknown token."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            user = self.user_of_token(token.strip())
            if user is not None:
                return user
            if not self._open:
                raise ApiError(401, "Unauthorized", "Unauthorized")
        return ADMIN if self._open else ANONYMOUS

    def user_of_token(self, token: str) -> UserInfo | None:
        return self._tokens.get(token) if self._is_valid.get(token, _always)() else None

    def issue(self, token: str, user: UserInfo, is_valid: Callable[[], bool]) -> None:
        """`is_valid` says whether the object that the token is bound to still exists."""
        self._tokens[token] = user
        self._is_valid[token] = is_valid

    def may(self, ask: AccessRequest) -> bool:
        return "system:masters" in ask.user.groups or self._may(ask)

    def check(self, ask: AccessRequest) -> None:
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
