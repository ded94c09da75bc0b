"""TokenReview, SubjectAccessReview and SelfSubjectReview: created, answered and never stored.

Also the tokens of ServiceAccounts.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.auth import AccessControl, AccessRequest, UserInfo, service_account
from kubernetes_in_memory.body_decoding import read_as
from kubernetes_in_memory.causes import required
from kubernetes_in_memory.kinds import PODS
from kubernetes_in_memory.name_generator import NameGenerator
from kubernetes_in_memory.reads import Reads
from kubernetes_in_memory.request_info import Call
from kubernetes_in_memory.times import timestamp

Json = dict[str, Any]

HOUR_S = 3600
AUTHENTICATION = "authentication.kubernetes.io"


class Reviews:
    def __init__(
        self, access: AccessControl, reads: Reads, names: NameGenerator, clock: Callable[[], datetime]
    ) -> None:
        self._access = access
        self._reads = reads
        self._names = names
        self._clock = clock

    def answer(self, call: Call) -> Json:
        """The review with its `status`."""
        spec = read_as(call, call.kind.kind).get("spec", {})
        answers = {
            "TokenReview": self._token_review,
            "SelfSubjectReview": self._self_review,
            "SubjectAccessReview": self._access_review,
            "SelfSubjectAccessReview": self._access_review,
        }
        head = {"kind": call.kind.kind, "apiVersion": call.kind.api_version, "metadata": {"creationTimestamp": None}}
        return head | {"spec": spec, "status": answers[call.kind.kind](call, spec)}

    def _token_review(self, call: Call, spec: Json) -> Json:
        if not spec.get("token"):
            raise status.invalid(call.kind, "", [required("spec.token")])
        user = self._access.user_of_token(spec["token"])
        if user is None:
            return {"authenticated": False, "user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": user.as_json(), "audiences": spec.get("audiences", [])}

    def _self_review(self, call: Call, spec: Json) -> Json:
        return {"userInfo": call.user.as_json()}

    def _access_review(self, call: Call, spec: Json) -> Json:
        user = call.user
        if call.kind.kind == "SubjectAccessReview":
            user = UserInfo(spec.get("user", ""), spec.get("uid", ""), tuple(spec.get("groups", ())))
            if not user.name and not user.groups:
                raise status.invalid(
                    call.kind, "", [required("spec.user", "at least one of user or group must be specified")]
                )
        return {"allowed": self._access.may(_asked(call, user, spec))}

    def issue_token(self, call: Call) -> Json:
        """A TokenRequest for a ServiceAccount. The token is valid as long as the process runs; one that is bound to a
        pod, as long as the pod exists."""
        spec = read_as(call, "TokenRequest").get("spec", {})
        account = self._reads.get(call)
        token = self._names.token()
        namespace, name = account.key
        extra, is_bound = self._bound(namespace, name, spec.get("boundObjectRef"))
        self._access.issue(token, service_account(namespace, name, account.uid, extra), is_bound)
        lives = timedelta(seconds=spec.get("expirationSeconds", HOUR_S))
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": timestamp(self._clock())},
            "spec": {"audiences": [], "expirationSeconds": HOUR_S, **spec},
            "status": {"token": token, "expirationTimestamp": timestamp(self._clock() + lives)},
        }

    def _bound(
        self, namespace: str, account: str, bound: Json | None
    ) -> tuple[dict[str, list[str]], Callable[[], bool]]:
        """What the token says about the pod that it is bound to, and whether that pod still exists."""
        if bound is None:
            return {}, lambda: True
        if bound.get("kind") != PODS.kind:
            raise status.bad_request(f"cannot bind a token to a {bound.get('kind')} here, only to a Pod")
        name = bound.get("name", "")
        pod = self._reads.find(PODS, namespace, name)
        if pod.tree["spec"].get("serviceAccountName", "default") != account:
            raise status.bad_request(
                f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
            )
        if bound.get("uid", pod.uid) != pod.uid:
            why = f"the UID in the bound object reference ({bound['uid']}) does not match the UID in record ({pod.uid})"
            raise status.conflict(PODS, name, f"{why}. The object might have been deleted and then recreated")

        def lives() -> bool:
            try:
                return self._reads.find(PODS, namespace, name).uid == pod.uid
            except status.ApiError:
                return False

        return {f"{AUTHENTICATION}/pod-name": [name], f"{AUTHENTICATION}/pod-uid": [pod.uid]}, lives


def _asked(call: Call, user: UserInfo, spec: Json) -> AccessRequest:
    match spec:
        case {"resourceAttributes": {}, "nonResourceAttributes": {}}:
            pass
        case {"resourceAttributes": {} as about}:
            fields = ("group", "resource", "subresource", "namespace", "name")
            return AccessRequest(user, about.get("verb", ""), *(about.get(field, "") for field in fields))
        case {"nonResourceAttributes": {} as about}:
            return AccessRequest(user, about.get("verb", ""), path=about.get("path", ""))
    why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
    raise status.invalid(call.kind, "", [required("spec.resourceAttributes", why)])
