"""The embedded Kubernetes API: one call in, one answer out.

A client in the same process calls `send`; `http_server` serves the same object on a socket. All state is
in memory and belongs to one event loop. Clock and random numbers are passed in, so that a run can be
repeated exactly.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubernetes_in_memory import discovery, status
from kubernetes_in_memory.admission import AdmissionWebhooks
from kubernetes_in_memory.auth import Access, AccessControl, AccessRequest, UserInfo, allow_everything
from kubernetes_in_memory.crds import Definitions
from kubernetes_in_memory.deletion import Deleter, options_of
from kubernetes_in_memory.garbage_collector import GarbageCollector
from kubernetes_in_memory.kinds import CREATE_ONLY, OF_A_KUBELET, PODS, SUBRESOURCES, Kinds
from kubernetes_in_memory.messages import HttpResponse, RequestLike
from kubernetes_in_memory.name_generator import NameGenerator
from kubernetes_in_memory.reads import Reads, selected_by
from kubernetes_in_memory.request_info import Call, call_of
from kubernetes_in_memory.reviews import Reviews
from kubernetes_in_memory.store import ObjectStore, StoredObject, encode
from kubernetes_in_memory.subresources import Subresources
from kubernetes_in_memory.watch import Watcher
from kubernetes_in_memory.webhook_client import ServiceAddress, WebhookClient
from kubernetes_in_memory.writes import Writes

Json = dict[str, Any]

JSON_HEADERS = {"content-type": "application/json"}
FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def _wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Settings:
    clock: Callable[[], datetime] = _wall_clock
    """The clock for timestamps."""
    chance: random.Random = field(default_factory=random.Random)
    """Where uids and generated names come from; seed it to repeat a run."""
    tokens: Mapping[str, UserInfo] | None = None
    """Bearer token → user. None: everybody is the administrator."""
    may: Access = allow_everything
    """Who may do what; administrators may do everything."""
    service_address: ServiceAddress | None = None
    """Where the Services are that admission webhooks name; without it only webhooks with a url can be called."""
    remembered_changes: int = 10_000
    """For each kind: how far back a watch or a continue token may reach before it is answered with 410."""
    bookmark_every_s: float = 60.0
    """How often an idle watch that asked for bookmarks gets one."""


class EmbeddedApi:
    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self._settings = settings
        self.store = ObjectStore(settings.remembered_changes)
        self.kinds = Kinds()
        names = NameGenerator(settings.chance)
        self._access = AccessControl(settings.tokens, settings.may)
        self._webhooks = WebhookClient(settings.service_address)
        self._admission = AdmissionWebhooks(self.store, self._webhooks, names.uid)
        self._deletion = Deleter(self.store, settings.clock)
        Definitions(self.store, self.kinds, settings.clock)
        self._collector = GarbageCollector(self.store, self.kinds, self._deletion)
        self._reads = Reads(self.store, settings.clock)
        self._writes = Writes(self.store, self._admission, self._deletion, settings.clock, names)
        self._subresources = Subresources(self.store, self._reads, self._admission, self._deletion, settings.clock)
        self._reviews = Reviews(self._access, self._reads, names, settings.clock)
        self._closing = asyncio.Event()
        for kind in self.kinds.stored():
            self.store.collection(kind.storage)
        for name in FIRST_NAMESPACES:
            self._writes.create_namespace(name)

    async def send(self, request: RequestLike) -> HttpResponse:
        try:
            return await self._answer(request)
        except status.ApiError as error:
            return _failure(error)
        finally:
            self._collector.work()

    async def aclose(self) -> None:
        """Ends every open watch."""
        self._closing.set()
        await self._webhooks.aclose()

    def forget_history(self) -> None:
        """Like a compaction: older versions can no longer be listed or watched from."""
        for _, collection in self.store.collections():
            collection.forget_up_to(self.store.version)

    async def _answer(self, request: RequestLike) -> HttpResponse:
        user = self._access.user_of(request.headers)
        document = discovery.answer(request, self.kinds)
        if document is not None:
            return document
        call = call_of(request, self.kinds, user)
        target = call.target
        verb = call.verb
        ask = AccessRequest(
            user, verb, target.kind.group, target.kind.plural, target.subresource, target.namespace, target.name
        )
        self._access.check(ask)
        if target.subresource:
            allowed = verb in SUBRESOURCES[target.subresource].verbs
        else:
            allowed = verb in target.kind.verbs and not (target.name and verb == "create")
        if not allowed:
            raise status.method_not_allowed()
        call.check_representation()
        if target.subresource in OF_A_KUBELET:
            raise status.no_kubelet(self._reads.get(call).key[1], target.subresource)
        return await (self._act(call) if target.subresource and verb == "create" else self._do(call, verb))

    async def _do(self, call: Call, verb: str) -> HttpResponse:
        match verb:
            case "get":
                return self._object(call, self._reads.get(call))
            case "list":
                return HttpResponse(200, self._reads.list_bytes(call), JSON_HEADERS)
            case "watch":
                return self._watch(call)
            case "create" if call.kind.verbs == CREATE_ONLY:
                return HttpResponse(201, encode(self._reviews.answer(call)), JSON_HEADERS)
            case "create":
                return self._object(call, await self._writes.create(call), 201)
            case "update":
                stored, new = await self._writes.update(call)
                return self._object(call, stored, 201 if new else 200)
            case "patch":
                stored, new = await self._writes.patch(call)
                return self._object(call, stored, 201 if new else 200)
            case "delete":
                return await self._delete(call)
            case _:
                return await self._delete_collection(call)

    async def _act(self, call: Call) -> HttpResponse:
        """The subresources that are actions: they are posted to, and not read."""
        match call.target.subresource:
            case "binding":
                answer = await self._subresources.bind(call)
            case "eviction":
                answer = await self._subresources.evict(call)
            case _:
                answer = self._reviews.issue_token(call)
        return HttpResponse(201, encode(answer), JSON_HEADERS)

    def _watch(self, call: Call) -> HttpResponse:
        collection = self.store.collection(call.kind.storage)
        watcher = Watcher(self.store, collection, self._reads.watch(call), self._settings.bookmark_every_s)
        return HttpResponse(200, headers=JSON_HEADERS, stream=watcher.lines(self._closing))

    async def _delete(self, call: Call) -> HttpResponse:
        options = options_of(call)
        live = self._reads.get(call)
        self._deletion.check_preconditions(call.kind, live, options)
        await self._admission.validate_deletion(call, live, options.dry_run)
        live = self._reads.get(call)
        self._deletion.check_preconditions(call.kind, live, options)
        last, gone = self._deletion.delete(call.kind.storage, live, options)
        if gone and call.kind.storage != PODS.storage:
            return HttpResponse(200, encode(status.success(call.kind, call.target.name, last.uid)), JSON_HEADERS)
        return self._object(call, last)

    async def _delete_collection(self, call: Call) -> HttpResponse:
        options = options_of(call)
        items = self._reads.selection(selected_by(call))
        for item in items:
            await self._admission.validate_deletion(call, item, options.dry_run)
            live = self.store.collection(call.kind.storage).get(*item.key)
            if live is not None:
                self._deletion.delete(call.kind.storage, live, options)
        head: Json = {"kind": call.kind.list_name, "apiVersion": call.kind.api_version}
        head["metadata"] = {"resourceVersion": str(self.store.version)}
        return HttpResponse(
            200, encode({**head, "items": [call.kind.as_shown(item.tree) for item in items]}), JSON_HEADERS
        )

    def _object(self, call: Call, stored: StoredObject, code: int = 200) -> HttpResponse:
        headers = JSON_HEADERS
        if call.warnings:
            escaped = (warning.replace("\\", "\\\\").replace('"', '\\"') for warning in dict.fromkeys(call.warnings))
            headers = {**headers, "warning": ", ".join(f'299 - "{text}"' for text in escaped)}
        return HttpResponse(code, self._reads.renderer(call)(stored), headers)


def _failure(error: status.ApiError) -> HttpResponse:
    headers = dict(JSON_HEADERS)
    if "retryAfterSeconds" in error.details:
        headers["retry-after"] = str(error.details["retryAfterSeconds"])
    return HttpResponse(error.code, encode(error.status()), headers)
