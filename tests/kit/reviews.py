"""Admission reviews as kube-apiserver sends them, and the object after the patch in the answer."""

import asyncio
import base64
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec

from carrel.admission.admission import PodAdmission
from carrel.admission.assembly import claim_reviews_on
from carrel.admission.handlers import ReviewHandler
from carrel.admission.metrics import WebhookMetrics
from carrel.admission.options import AdmissionOptions
from carrel.bookings.client import BookingStatus, CachedAnswer
from carrel.cluster.options import DEFAULT_CLUSTER_OPTIONS, ClusterOptions
from carrel.cluster.runtime_class import NONE
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import LeaseRecord, write_lease
from carrel.dialects.gpuclaim import node_status
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.dialects.hand_over_record import HandOver, write_record
from carrel.dialects.jupyter import HubPeople
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions, DraDriver, WhenFull
from carrel.dialects.seal import Seal
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.cluster import EVERYTHING, ListPage, NotFound, Selection
from carrel.kubernetes.objects.resources import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    Resource,
)
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.shares import Holder, Share
from carrel.ledger.tiers import TierPolicy
from carrel.parsing.time import seconds
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from carrel.settings import holders_counting
from kubernetes_in_memory import json_patch
from tests.kit.dra import a_slice
from tests.kit.gpus import N1, a_node

Json = dict[str, Any]

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SPAWNER = "system:serviceaccount:jhub:hub"
MODEL = "NVIDIA-RTX-A6000"
ALICE = "alice@lab.example"
EVENING = NOON + timedelta(hours=8)
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
DEVICES = {"NVIDIA_VISIBLE_DEVICES": "<carrel.dev/devices>", "CUDA_VISIBLE_DEVICES": "<carrel.dev/devices>"}
"""What a container with a GPU sees, as `Reviewed.env` shows it."""
GPU = {"nvidia.com/gpu": "1"}


@dataclass
class BookedPeople:
    """Another booking service, as MAIA's, which knows these people's bookings."""

    until: dict[str, datetime] = field(default_factory=dict)
    model: str = MODEL
    silence: str = ""
    was_answered: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def status(self, user: str, namespace: str) -> CachedAnswer:
        self.asked.append((user, namespace))
        if self.silence:
            return CachedAnswer(None, failure=self.silence, was_answered=self.was_answered)
        until = self.until.get(user)
        return CachedAnswer(BookingStatus(until, self.model, 1) if until else BookingStatus())


class ListedObjects:
    """A cluster that has these objects, for a state that is read once and not watched."""

    def __init__(self, objects: Mapping[Resource[Any], Sequence[Json]]) -> None:
        self._objects = objects

    async def list(self, resource: Resource[Any], selection: Selection = EVERYTHING, **_: Any) -> ListPage[Any]:
        found = [msgspec.convert(each, resource.object_type) for each in self._objects.get(resource, ())]
        return ListPage(found, "1")

    async def get(self, resource: Resource[Any], name: str, namespace: str = "") -> Json:
        raise NotFound(404, "NotFound", f"{resource.plural} {name}")


def a_state(
    objects: Mapping[Resource[Any], Sequence[Json]] | None = None,
    options: ClusterOptions = DEFAULT_CLUSTER_OPTIONS,
    *,
    is_read: bool = True,
) -> ClusterState:
    """What a process knows of a cluster with these objects; a test may tell it more. `is_read`: its lists are here."""
    state = ClusterState(ListedObjects(objects or {}), options)  # type: ignore[arg-type] # it is only read
    if is_read:
        asyncio.run(state.informers.read_once())
    return state


@dataclass
class ReviewedCluster:
    """What a test sets about the cluster: one node with three GPUs, unless it says otherwise."""

    bookings: Sequence[Json] = ()
    running: Sequence["RunningPod"] = ()
    nodes: Sequence[Node] = (replace(a_node("n1", 3), why_no_limits=""),)
    node_objects: Mapping[str, Json] = field(default_factory=dict)
    """Node → what the object says besides its name, as `{"spec": {"unschedulable": True}}`."""
    claims: Sequence[Json] = ()
    booking_lookup: BookedPeople | None = None
    """Another booking service."""
    options: AdmissionOptions = field(default_factory=AdmissionOptions)
    namespace: Mapping[str, str] = field(default_factory=dict)
    """The annotations of namespace lab."""
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    handed_over: Sequence[HandOver] = ()
    classes: tuple[str, ...] = ("carrel-gpu",)
    runtime_class: str = ""
    handlers: Mapping[str, str] = field(default_factory=dict)
    """RuntimeClasses → their handlers."""
    seal: Seal | None = None
    now: Callable[[], datetime] = lambda: NOON
    zone: tzinfo = UTC
    username_prefix: str = ""
    hub_people: HubPeople = field(default_factory=HubPeople)
    opportunistic_gpus: int = 0
    nobodys_pods_keep: bool = False
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS
    dra: bool = False
    resource_claims: Sequence[Json] = ()
    claim_templates: Sequence[Json] = ()
    device_classes: Sequence[Json] = ()
    slices: Sequence[Json] | None = None
    """Which GPUs the nodes advertise by claims; None: all."""

    def state(self) -> ClusterState:
        metadata = {"name": "lab", "annotations": dict(self.namespace), "labels": dict(self.namespace_labels)}
        lab = {"metadata": metadata}
        objects: dict[Resource[Any], Sequence[Json]] = {
            NODES: [{"metadata": {"name": node.name}, **self.node_objects.get(node.name, {})} for node in self.nodes],
            GPU_NODE_STATUSES: [node_status(node, {}, self.now()) for node in self.nodes],
            GPU_CLAIMS: self.claims,
            BOOKINGS: self.bookings,
            NAMESPACES: [lab],
            PODS: [each.pod() for each in self.running],
            LEASES: [lease for each in self.running for lease in each.leases()],
            CONFIG_MAPS: [write_record(each, "carrel") for each in self.handed_over],
            PRIORITY_CLASSES: [{"metadata": {"name": name}, "value": 1000} for name in self.classes],
            RUNTIME_CLASSES: [{"metadata": {"name": name}, "handler": each} for name, each in self.handlers.items()],
            RESOURCE_CLAIMS: self.resource_claims,
            RESOURCE_CLAIM_TEMPLATES: self.claim_templates,
            DEVICE_CLASSES: self.device_classes,
            RESOURCE_SLICES: self.slices if self.slices is not None else [a_slice(node) for node in self.nodes],
        }
        policy = TierPolicy(self.opportunistic_gpus, nobodys_pods_keep=self.nobodys_pods_keep)
        options = ClusterOptions(
            now=self.now,
            zone=self.zone,
            seal=self.seal,
            tier_policy=policy,
            dialect_options=self.dialect_options,
            holders=holders_counting(DraDriver.CARREL if self.dra else None),
        )
        return ClusterState(ListedObjects(objects), options)  # type: ignore[arg-type] # it is only read

    async def handler(self) -> ReviewHandler:
        options = replace(
            self.options,
            trusted=frozenset({"root"}),
            spawners=frozenset({SPAWNER}),
            username_prefix=self.username_prefix,
            hub_people=self.hub_people,
            runtime_class=self.runtime_class or NONE,
        )
        state = self.state()
        admission = PodAdmission(state, options, self.booking_lookup)
        await state.informers.read_once()
        metrics = WebhookMetrics()
        return ReviewHandler(admission, metrics, lambda: True, claim_reviews_on(state))

    async def create(self, pod: Json, user: str = "alice@lab.example", **changes: Any) -> "Reviewed":
        """The pod after review, if this user creates it."""
        return await self.ask(review(pod, user, **changes))

    async def ask(self, request_body: Json) -> "Reviewed":
        status, body = await (await self.handler()).mutate(json.dumps(request_body).encode())
        assert status == 200, body
        return apply_answer(request_body, json.loads(body))


@dataclass(frozen=True)
class RunningPod:
    """A pod of namespace lab that has GPUs of node n1, or a part of them, or waits for one."""

    name: str
    user: str = "eve@lab.example"
    gpus: Sequence[int] = (0,)
    """By index; empty: it waits for one."""
    mib: int | None = None
    """Of each; None: all of it."""

    def pod(self) -> Json:
        told = {"carrel.dev/user": self.user, "carrel.dev/tier": "opportunistic"}
        metadata = {"name": self.name, "namespace": "lab", "uid": f"uid-{self.name}", "annotations": told}
        container = {"name": "main", "resources": {"limits": GPU}}
        spec = {"containers": [container], **({"nodeName": "n1"} if self.gpus else {})}
        return {"metadata": {**metadata, "creationTimestamp": "2026-11-16T08:00:00Z"}, "spec": spec}

    def leases(self) -> list[Json]:
        holder = Holder(PodUid(f"uid-{self.name}"), "lab", self.name)
        memory = None if self.mib is None else MiB(self.mib)
        records = [
            LeaseRecord(N1, index, gpu := GpuUuid(f"GPU-n1-{index}"), (Share(holder, gpu, memory),))
            for index in self.gpus
        ]
        return [write_lease(record, "carrel", NOON) for record in records]


@dataclass
class Reviewed:
    allowed: bool
    object: Json
    """As it is after the patch."""
    message: str = ""
    code: int = 0
    warnings: list[str] = field(default_factory=list)
    patch: list[Json] = field(default_factory=list)

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.object["metadata"].get("annotations") or {}
        return found

    def container(self, name: str = "main") -> Json:
        spec = self.object["spec"]
        everyone = [*spec.get("containers", []), *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]
        found: Json = next(each for each in everyone if each["name"] == name)
        return found

    def env(self, name: str = "main") -> dict[str, str]:
        """Variable → its value, or the annotation it comes from in angle brackets."""
        return self.env_of(self.container(name))

    def env_of(self, container: Json) -> dict[str, str]:
        written = container.get("env") or []
        ours = [each["name"] for each in written if each["name"].endswith("_VISIBLE_DEVICES")]
        assert len(set(ours)) == len(ours), "a variable is written twice"
        return {each["name"]: _value(each) for each in written}


def a_booking(user: str = ALICE, gpus: int = 1, **spec: Any) -> Json:
    """Of one A6000, from this morning to this evening: `model=…`, `start=…`, `end=…`, `members=[…]`, `name=…`."""
    name, start, end = spec.pop("name", "b1"), spec.pop("start", NOON - timedelta(hours=4)), spec.pop("end", EVENING)
    times = {"start": seconds(start), "end": seconds(end)}
    return {"metadata": {"name": name}, "spec": {"user": user, "gpus": gpus, "model": MODEL, **times, **spec}}


def booked(**changes: Any) -> ReviewedCluster:
    """Alice has an active booking."""
    return ReviewedCluster(bookings=[a_booking()], **changes)


def full(**options: Any) -> ReviewedCluster:
    """No GPU is free, there are no bookings, and a pod that finds none runs on CPU."""
    wanted = AdmissionOptions(**{"when_full": WhenFull.CPU, **options})
    return ReviewedCluster(running=[RunningPod("busy", gpus=(0, 1, 2))], options=wanted)


def _value(variable: Json) -> str:
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    path: str = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return f"<{path.removeprefix('metadata.annotations[').strip(']').strip(chr(39))}>"


def apply_answer(request_body: Json, answer: Json) -> Reviewed:
    response = answer["response"]
    assert response["uid"] == request_body["request"]["uid"]
    assert answer["apiVersion"] == request_body["apiVersion"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    before = copy.deepcopy(request_body["request"]["object"])
    status = response.get("status", {})
    return Reviewed(
        response["allowed"],
        json_patch.apply(before, patch),
        status.get("message", ""),
        status.get("code", 0),
        response.get("warnings", []),
        patch,
    )


def review(
    new: Json | None,
    user: str = "alice@lab.example",
    *,
    old: Json | None = None,
    operation: str = "CREATE",
    subresource: str = "",
    version: str = "v1",
    kind: str = "Pod",
    dry_run: bool = False,
) -> Json:
    request: Json = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": ((new or {}).get("metadata") or {}).get("name", ""),
        "namespace": "lab",
        "operation": operation,
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
        "dryRun": dry_run,
    }
    if subresource:
        request["subResource"] = subresource
    return {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "request": request}


def a_pod(limits: Mapping[str, str] | None = None, **changes: Any) -> Json:
    """With one container, `main`. `annotations`, `labels` and `owner` go to its metadata, the rest to its spec."""
    metadata: Json = {"name": "train", "creationTimestamp": None}
    for key in ("annotations", "labels"):
        if key in changes:
            metadata[key] = changes.pop(key)
    if "owner" in changes:
        metadata["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": changes.pop("owner"), "controller": True}]
    container: Json = {"name": "main", "image": "work"}
    if limits is not None:
        container["resources"] = {"limits": dict(limits)}
    spec = {"containers": [container], "schedulerName": "default-scheduler", "priority": 0, **changes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
