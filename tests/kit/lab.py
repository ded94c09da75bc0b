"""A small cluster on the embedded API, with as many replicas of Carrel's scheduling as a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Any

from carrel.bookings.cluster_view import ClusterView
from carrel.cluster.invariants import observe, violations
from carrel.cluster.options import DEFAULT_CLUSTER_OPTIONS, ClusterOptions
from carrel.cluster.placement_rules import PlacementRules, report_rules
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import read_lease
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions, DraDriver
from carrel.ids import NodeName
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import EVERYTHING, Json, Selection
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import CRDS, LEASES, NAMESPACES, NODES, PODS
from carrel.kubernetes.reflector import Informers, WatchTiming
from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.transport import ApiRequest, ApiResponse, Transport
from carrel.ledger.filtering import FilterResult
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.ledger.tiers import TierPolicy
from carrel.lifecycle.assembly import collector_on
from carrel.lifecycle.reservations.reservation_pods import ReservationPods
from carrel.manifests import crds
from carrel.parsing.time import seconds
from carrel.resource_claims.device_claims import DeviceClaims
from carrel.resource_claims.holders import claims_in
from carrel.scheduling.assembly import SchedulerOptions, scheduler_on
from carrel.scheduling.gangs import GangTimeouts
from carrel.settings import holders_counting
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.faults import Crashed
from testbed.kubelets import SimulatedKubelets
from tests.kit.configuration import configure
from tests.kit.eventually import LIMIT_S, eventually

OURS = "carrel"
NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
BOOKER = "booker@lab.example"
"""Has booked more GPUs than any cluster of a test has, for a month: all pods of this person are covered."""
NO_HURRY = GangTimeouts()
QUICK = WatchTiming(backoff=Backoff(first_s=0.001, limit_s=0.01))
"""Only the test uses the embedded API: a watch that failed may be retried at once."""


AT_ONCE = Backoff(first_s=0.0, limit_s=0.0)
"""The clock of a lab stands still: what failed is due again in the next round."""


class Clock:
    """Shows the time that the test sets."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        return self.now.timestamp()


class WriteCounter:
    """A transport that records the writes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        """The transport itself; a `Faulty` one has a `story`."""
        self.writes: list[str] = []

    async def send(self, request: ApiRequest) -> ApiResponse:
        if request.method != "GET":
            self.writes.append(f"{request.method} {request.path}")
        answer: ApiResponse = await self.inner.send(request)
        return answer

    async def aclose(self) -> None:
        await self.inner.aclose()


class Replica(ClusterState):
    """One process of Carrel: its own caches, its own ledger."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        timeouts: GangTimeouts,
        reserve_s: float,
        tier_policy: TierPolicy | None = None,
        dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS,
        dra: bool = False,
        dra_driver: DraDriver = DraDriver.CARREL,
        zone: tzinfo = UTC,
        is_shown: bool = False,
    ) -> None:
        self.transport = WriteCounter(transport)
        options = ClusterOptions(
            now=clock,
            clock=clock.seconds,
            watch_timing=QUICK,
            reserve_s=reserve_s,
            tier_policy=tier_policy or TierPolicy(),
            dialect_options=dialect_options,
            retry=AT_ONCE,
            zone=zone,
            holders=holders_counting(dra_driver if dra else None),
        )
        super().__init__(Client(self.transport), options)
        self.scheduler = scheduler_on(self, SchedulerOptions(timeouts=timeouts))
        self.collector = collector_on(self)
        self.reservations = ReservationPods(self)
        self._view = ClusterView(self) if is_shown else None

    @property
    def view(self) -> ClusterView:
        """What the booking service sees of the cluster; for a replica with `is_shown`."""
        assert self._view is not None, "lab.replica(is_shown=True)"
        return self._view

    @property
    def device_claims(self) -> DeviceClaims:
        return claims_in(self)

    async def sees(self, pod: Json) -> Pod:
        """The pod as this replica's cache has it, once it has it in this version or a later one."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]

        def here() -> Pod | None:
            found = self.pods.store.get(name, namespace)
            wanted = int(pod["metadata"]["resourceVersion"])
            return found if found and int(found.metadata.resource_version) >= wanted else None

        found = await eventually(here, f"{namespace}/{name} in the cache")
        assert found is not None
        return found

    def filter(self, pod: Pod, nodes: Sequence[NodeName], *, chooses: bool = False) -> FilterResult:
        """A pod whose request cannot be read fits on no node. `chooses`: one node is named, and promised to the pod."""
        found = self.scheduler.filter(pod, nodes, chooses=chooses)
        return FilterResult.by_reason(nodes, found.reason) if isinstance(found, Refusal) else found

    async def bind(self, pod: Json, node: str) -> Refusal | None:
        return await self.scheduler.bind(await self.sees(pod), NodeName(node))


class Lab:
    def __init__(self, api: EmbeddedApi, clock: Clock) -> None:
        self.api = api
        self.client = Client(api)
        self.clock = clock

    @contextlib.asynccontextmanager
    async def replica(
        self,
        transport: Transport | None = None,
        timeouts: GangTimeouts = NO_HURRY,
        reserve_s: float = LIMIT_S,
        tier_policy: TierPolicy | None = None,
        dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS,
        dra: bool = False,
        dra_driver: DraDriver = DraDriver.CARREL,
        zone: tzinfo = UTC,
        is_shown: bool = False,
    ) -> AsyncIterator[Replica]:
        """A replica whose ledger is rebuilt. When the block ends it is killed. `is_shown`: it has a `view`."""
        where, dra_options = transport or self.api, (dra, dra_driver, zone, is_shown)
        replica = Replica(where, self.clock, timeouts, reserve_s, tier_policy, dialect_options, *dra_options)
        running = asyncio.ensure_future(replica.informers.run())
        try:
            await replica.informers.wait_synced()
            yield replica
        finally:
            running.cancel()
            try:
                await running
            except* (asyncio.CancelledError, Crashed):
                pass  # any other error must fail the test

    async def pod(self, name: str, **spec: Any) -> Json:
        """`limits={"nvidia.com/gpu": "1"}`, `annotations={…}`, `labels={…}`, `owner={…}`, `gates=["a.example/b"]`,
        `node_selector={…}`, `claims=[{"name": "gpu", "resourceClaimName": "…"}]`."""
        container = {"name": "main", "image": "work", "resources": {"limits": spec.get("limits", {})}}
        metadata = {"name": name, "annotations": spec.get("annotations", {})}
        owners = [spec["owner"]] if "owner" in spec else []
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "labels": spec.get("labels", {}), "ownerReferences": owners},
            "spec": {
                "schedulerName": spec.get("scheduler", "gpu-scheduler"),
                "terminationGracePeriodSeconds": spec.get("grace_seconds", 30),
                "initContainers": spec.get("init_containers", []),
                "containers": spec.get("containers", [container]),
                "schedulingGates": [{"name": name} for name in spec.get("gates", ())],
                "nodeSelector": spec.get("node_selector", {}),
                "resourceClaims": spec.get("claims", []),
            },
        }
        return await self.client.create(PODS, body, spec.get("namespace", "lab"))

    async def book(self, user: str = "ada@lab.example", gpus: int = 1, **spec: Any) -> Json:
        """A booking that runs now, and has settled: `model=…`, `start=…` and `end=…` (instants), `members=[…]`,
        `name=…`, `settlingSeconds=…`."""
        start, end = spec.pop("start", self.clock.now - DAY), spec.pop("end", self.clock.now + DAY)
        name = spec.pop("name", f"booking-{user.partition('@')[0]}")
        times = {"start": seconds(start), "end": seconds(end)}
        body = {
            "apiVersion": BOOKINGS.api_version,
            "kind": BOOKINGS.kind,
            "metadata": {"name": name},
            "spec": {"user": user, "gpus": gpus, "settlingSeconds": 0, **times, **spec},
        }
        return await self.client.create(BOOKINGS, body)

    async def report_rules(self, options: ClusterOptions = DEFAULT_CLUSTER_OPTIONS) -> None:
        """What an extender with these options reports when it starts, so that commands can read the cluster."""
        rules = PlacementRules.of(options, SchedulerOptions().schedulers, spreads=False)
        await report_rules(self.client, options.namespace, rules)

    async def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = (await self.client.get(PODS, name, "lab"))["metadata"].get("annotations", {})
        return found

    async def held(self) -> dict[str, dict[str, int | None]]:
        """What the Leases say, read from the API server: Lease → uid → MiB (None: whole)."""
        leases = (await self.client.list(LEASES, Selection(OURS))).items
        records = {lease.metadata.name: read_lease(lease) for lease in leases}
        return {
            name: {share.holder.uid: share.memory for share in record.shares}
            for name, record in records.items()
            if record is not None
        }

    async def violations(self) -> list[str]:
        """Which invariants the API server's objects break now, in words."""
        observed = observe(
            (await self.client.list(GPU_NODE_STATUSES)).items,
            (await self.client.list(NODES)).items,
            (await self.client.list(LEASES, Selection(OURS))).items,
            (await self.client.list(PODS, EVERYTHING)).items,
            (await self.client.list(BOOKINGS)).items,
            self.clock.now,
        )
        return [each.words for each in violations(observed)]

    async def bound(self) -> dict[str, str]:
        """uid → node, of all pods that are bound."""
        pods = (await self.client.list(PODS, EVERYTHING)).items
        return {pod.metadata.uid: pod.spec.node_name for pod in pods if pod.spec.node_name}


@cache
def _definitions() -> tuple[Json, ...]:
    """To read them takes longer than most tests."""
    return tuple(crds())


@contextlib.asynccontextmanager
async def a_lab(nodes: Sequence[Node], *, in_real_time: bool = False, has_booker: bool = True) -> AsyncIterator[Lab]:
    """`in_real_time`: for separate processes, which know only the real time and would ignore an old heartbeat;
    an extender with the default settings has run before them."""
    clock = Clock(datetime.now(UTC) if in_real_time else NOON)
    lab = Lab(EmbeddedApi() if in_real_time else EmbeddedApi(Settings(clock=clock)), clock)
    for crd in _definitions():
        await lab.client.create(CRDS, crd)
    for name in (OURS, "lab", "elsewhere"):
        await lab.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    if has_booker:
        await lab.book(BOOKER, gpus=1000, name="enough", end=clock.now + 30 * DAY)
    informers = Informers(lab.client)
    await SimulatedKubelets(lab.client, nodes, informers.watch(PODS), lab.clock).announce()
    if in_real_time:
        await lab.report_rules()
        await configure(lab.client)
    yield lab
