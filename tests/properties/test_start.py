"""A process that finds a cluster when it starts knows the same as one that saw every object come.

What is found by lists is taken over in parts, each node is summed up once for each part, and some kinds wait for
others. What comes later comes object by object, in any order.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.dialects.gpu_lease import LeaseRecord, lease_name, write_lease
from carrel.ids import BookingId, GpuUuid, NodeName, PodUid
from carrel.kubernetes import reflector
from carrel.kubernetes.api_calls import ApiCalls
from carrel.kubernetes.cluster import EVERYTHING, ChangeType, ListPage, Selection, WatchEvent
from carrel.kubernetes.objects.resources import Resource
from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Coverage, Holder, Share
from carrel.parsing.time import seconds
from carrel.scheduling.assembly import scheduler_on

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
NODES, GPUS, PODS, BOOKINGS = ("n1", "n2", "n3"), (0, 1), ("p0", "p1", "p2", "p3", "p4"), ("b0", "b1")
KINDS = ("pods", "bookings", "leases", "nodes", "gpunodestatuses", "namespaces", "gpuclaims")
Json = dict[str, Any]
Found = tuple[str, Json]
"""A kind and an object of it."""


class Server:
    """Lists what it has, and sends to its watches what comes later."""

    def __init__(self, objects: Sequence[Found]) -> None:
        self.calls = ApiCalls()
        self._objects = objects
        self._later: dict[str, asyncio.Queue[Json]] = {}

    async def list(self, resource: Resource[Any], selection: Selection = EVERYTHING, **_: Any) -> ListPage[Any]:
        items = [each for kind, each in self._objects if kind == resource.plural]
        return ListPage([msgspec.convert(each, resource.object_type) for each in items], "1")

    @asynccontextmanager
    async def watch(
        self, resource: Resource[Any], selection: Selection = EVERYTHING, **_: Any
    ) -> AsyncIterator[AsyncIterator[WatchEvent[Any]]]:
        yield self._events(resource, self._queue(resource.plural))

    async def _events(self, resource: Resource[Any], queue: "asyncio.Queue[Json]") -> AsyncIterator[WatchEvent[Any]]:
        while True:
            item = msgspec.convert(await queue.get(), resource.object_type)
            yield WatchEvent(ChangeType.ADDED, item, item.metadata.resource_version)
            queue.task_done()

    async def add(self, kind: str, item: Json) -> None:
        """Until all handlers have heard of it."""
        self._queue(kind).put_nowait(item)
        await self._queue(kind).join()

    def _queue(self, kind: str) -> "asyncio.Queue[Json]":
        return self._later.setdefault(kind, asyncio.Queue())


class Process:
    def __init__(self, objects: Sequence[Found]) -> None:
        self.server = Server(objects)
        self.state = ClusterState(self.server, ClusterOptions(now=lambda: NOON))  # type: ignore[arg-type] # reads only
        self.scheduler = scheduler_on(self.state)
        self.reflectors = {each.resource.plural: each for each in self.state.informers.reflectors}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Process"]:
        task = asyncio.create_task(self.state.informers.run())
        await self.state.informers.wait_synced()
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def knows(self) -> Json:
        """Everything by which it decides."""
        state, ledger, covered = self.state, self.state.ledger, self.state.covered_pods
        machines = self.scheduler._ranking.machines
        assert machines is not None
        state.cluster_ledger.mark_silent_agents(NOON)
        ledger.audit()
        uids = sorted({pod.metadata.uid for pod in state.pods.store} | set(ledger.holders()))
        uses = {name: covered.use_of(BookingId(name)) for name in BOOKINGS}
        return {
            "nodes": {name: ledger.node(name) for name in ledger.nodes},
            "entries": {
                entry.gpu.uuid: (entry.gpu, entry.shares, entry.kept_for, entry.free)
                for name in ledger.nodes
                for entry in ledger.entries(name)
            },
            "rooms": dict(ledger.rooms),
            "shares": {uid: dict(ledger.shares_of(uid)) for uid in uids},
            "kept": {uid: ledger.kept_for(uid) for uid in uids},
            "leases": {lease.name: lease for lease in state.cluster_ledger.leases()},
            "unreadable": dict(state.cluster_ledger.unreadable_leases()),
            "unrecorded": {name: list(state.cluster_ledger.unrecorded(NodeName(name))) for name in NODES},
            "machines": dict(machines.free),
            "covered": {uid: covered.of(uid) for uid in uids},
            "revocable": {uid: covered.is_revocable(uid) for uid in uids},
            "waiting": list(covered.covered_waiting().items()),
            "uses": {name: (use.gpus, use.count) if use else None for name, use in uses.items()},
            "requests": {pod.metadata.uid: str(state.pod_facts.asked(pod)) for pod in state.pods.store},
        }


# --- clusters --------------------------------------------------------------------------------------------------------


def an_object(kind: str, name: str, body: Json, namespace: str = "") -> Found:
    known = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "5"}
    known |= {"creationTimestamp": seconds(NOON)}
    return kind, {**body, "metadata": {**body.get("metadata", {}), **known}}


def a_pod(name: str, node: str, phase: str, asked: Json, ends: bool, person: str, told: str) -> Found:
    notes = {"carrel.dev/user": person, "carrel.dev/tier": "opportunistic", **asked.get("notes", {})}
    notes |= {"carrel.dev/devices": told} if told else {}
    container = {"name": "main", "resources": {"limits": {"cpu": "2", "memory": "1Gi", **asked.get("limits", {})}}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds(NOON)}
    metadata: Json = {"annotations": notes} | ({"deletionTimestamp": seconds(NOON)} if ends else {})
    spec = {"containers": [container]} | ({"nodeName": node} if node else {})
    status = {"phase": phase if node else "Pending", "conditions": [scheduled] if node else []}
    return an_object("pods", name, {"metadata": metadata, "spec": spec, "status": status}, "lab")


def a_lease(node: str, index: int, holders: Sequence[str], memory: int | None, how: str, moved: bool) -> Found:
    gpu = f"GPU-{node}-{1 - index if moved else index}"
    coverage = Coverage(BookingId("b0"), NOON) if how == "booked" else None
    shares = tuple(
        Share(
            Holder(PodUid(f"uid-{pod}"), "lab", pod),
            GpuUuid(gpu),
            None if memory is None else MiB(memory),
            coverage=coverage,
        )
        for pod in holders
    )
    record = LeaseRecord(NodeName(node), index, GpuUuid(gpu), shares)
    if how == "kept":
        record = record.keeping(
            Holder(PodUid("uid-p4"), "lab", "p4"), [share.holder for share in shares], BookingId("b1")
        )
    body = write_lease(record, "carrel", NOON)
    if how == "unreadable":
        body["metadata"]["annotations"]["carrel.dev/shares"] = "{"
    return an_object("leases", lease_name(NodeName(node), index), body, "carrel")


def a_report(node: str, users: Sequence[str], silent: bool, also: str, coexists: bool) -> Found:
    devices = [
        {"id": index, "uuid": f"GPU-{node}-{index}", "model": "A6000", "memoryMiB": 1000, "health": "Healthy"}
        for index in GPUS
    ]
    devices[0]["inUseBy"] = [f"uid-{pod}" for pod in users]
    devices += [{**devices[0], "id": 2, "uuid": also, "inUseBy": []}] if also else []
    heartbeat = seconds(NOON - timedelta(hours=1) if silent else NOON)
    mode = {"mode": "Coexist"} if coexists else {}
    return an_object("gpunodestatuses", node, {"status": {"devices": devices, "heartbeat": heartbeat, **mode}})


def a_booking(name: str, user: str, gpus: int) -> Found:
    times = {"start": seconds(NOON - timedelta(hours=1)), "end": seconds(NOON + timedelta(hours=1))}
    return an_object("bookings", name, {"spec": {"user": user, "gpus": gpus, **times}})


ASKED: tuple[Json, ...] = (
    {},
    {"limits": {"nvidia.com/gpu": "1"}},
    {"limits": {"aliyun.com/gpu-mem": "300"}},
    {"notes": {"carrel.dev/gpu-memory-mib": "300"}},
    {"notes": {"carrel.dev/gpu-count": "many"}},
    {"notes": {"gpu.scheduling/claim": "c0"}},
)
people, some_pods = st.sampled_from(["ada", "bob"]), st.lists(st.sampled_from(PODS), max_size=2, unique=True)
told_gpus = st.sampled_from(["", "", "GPU-n1-0", "GPU-n2-1"])


@st.composite
def clusters(draw: st.DrawFn, *, with_moved_gpus: bool) -> list[Found]:
    """`with_moved_gpus`: two nodes may report the same GPU. Which of them has it also depends on who was first."""
    found = [an_object("namespaces", "lab", {})]
    allocatable = {"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "2"}
    for node in draw(st.lists(st.sampled_from(NODES), unique=True)):
        found.append(an_object("nodes", node, {"status": {"allocatable": allocatable, "capacity": allocatable}}))
    for node in draw(st.lists(st.sampled_from(NODES), unique=True)):
        also = st.sampled_from(["", "", "GPU-n1-0"]) if with_moved_gpus and node != "n1" else st.just("")
        found.append(a_report(node, draw(some_pods), draw(st.booleans()), draw(also), draw(st.booleans())))
    for pod in draw(st.lists(st.sampled_from(PODS), unique=True)):
        where, phase = draw(st.sampled_from(["", *NODES])), draw(st.sampled_from(["Pending", "Running", "Succeeded"]))
        asked = draw(st.sampled_from(ASKED))
        found.append(a_pod(pod, where, phase, asked, draw(st.booleans()), draw(people), draw(told_gpus)))
    for node in NODES:
        for index in draw(st.lists(st.sampled_from(GPUS), unique=True)):
            how = draw(st.sampled_from(["", "", "", "booked", "kept", "unreadable"]))
            memory = draw(st.sampled_from([None, 300]))
            found.append(
                a_lease(node, index, draw(some_pods), memory, how, draw(st.sampled_from([False, False, True])))
            )
    for name in draw(st.lists(st.sampled_from(BOOKINGS), unique=True)):
        found.append(a_booking(name, draw(people), draw(st.integers(1, 2))))
    if draw(st.booleans()):
        found.append(an_object("gpuclaims", "c0", {"spec": {"devices": {"count": 1}}}, "lab"))
    return found


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "_AT_ONCE", 2)


@settings(max_examples=75, deadline=None)
@given(clusters(with_moved_gpus=False), st.data())
def test_objects_that_come_one_by_one_make_the_same_ledger_as_lists(objects: list[Found], data: st.DataObject) -> None:
    # A pod is bound after the claim that it names exists; what a claim that comes later changes, the next report says.
    order = sorted(data.draw(st.permutations(objects)), key=lambda found: found[0] != "gpuclaims")

    async def run() -> None:
        async with Process(objects).running() as started, Process(()).running() as watching:
            for kind, item in order:
                await watching.server.add(kind, item)
            assert watching.knows() == started.knows()

    asyncio.run(run())


@settings(max_examples=75, deadline=None)
@given(clusters(with_moved_gpus=True), st.permutations(KINDS))
def test_it_does_not_matter_which_kind_is_read_first(objects: list[Found], kinds: list[str]) -> None:
    async def run() -> None:
        async with Process(objects).running() as started:
            by_kind = Process(objects)
            for kind in kinds:
                await by_kind.reflectors[kind].read_once()
            for each in by_kind.state.informers.reflectors:
                await each.read_once()
            assert by_kind.knows() == started.knows()

    asyncio.run(run())
