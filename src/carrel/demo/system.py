"""The whole demo: the embedded Kubernetes API, simulated nodes and users, the extender here, the rest as processes."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from carrel.cluster.configuration_record import GIVEN, TEXT, body_of
from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.cluster.options import NAMESPACE, utc_now
from carrel.cluster.placement_rules import PlacementRules, report_rules
from carrel.cluster.pod_progress import SCHEDULED, holder_of, is_waiting
from carrel.cluster.record.shown_gpus import shown_gpus, shown_indices
from carrel.cluster.state import ClusterState
from carrel.demo.bookings import bookings_of, has_one_model, history, make_bookings
from carrel.demo.component_processes import (
    CONFIGURATION,
    RESERVATION,
    ComponentStarter,
    ComponentTokens,
    running_components,
)
from carrel.demo.nodes import DemoKubelets, NodeContext
from carrel.demo.screen import DemoView
from carrel.demo.story import SHOWN_S, Story
from carrel.demo.usage_history import write_usage_history
from carrel.demo.workload import Workload, create_namespace, owner_of
from carrel.dialects import kai_reservation
from carrel.dialects.tier import person_of
from carrel.http.serving import Address, serving
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Conflict, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import CONFIG_MAPS, CRDS, MUTATING_WEBHOOKS, NAMESPACES, PODS, PRIORITY_CLASSES
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import GpuEntry
from carrel.lifecycle.assembly import collector_on
from carrel.lifecycle.handing_over.notices import how_lost
from carrel.lifecycle.revoking.revocation import UNSCHEDULABLE
from carrel.manifests import crds, priority_classes, webhooks
from carrel.node.settings import AgentMode
from carrel.scheduling.assembly import SchedulerOptions, extender_app, handlers_on, scheduler_on
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.http_server import serve

Json = dict[str, Any]
WhenBound = Callable[[str, str], None]
"""Called with the node and the error of the bind; no error: the pod is bound."""


class SimulatedScheduler:
    """Calls the extender over HTTP as kube-scheduler does, one pod at a time: filter with the names of the nodes on
    which it may run, prioritize with those that are left, then bind to the best. Binds run in the background, as
    kube-scheduler's do, because the pods of a gang wait for each other. It knows nothing of volumes and resources."""

    def __init__(self, session: aiohttp.ClientSession, binds: asyncio.TaskGroup, url: str) -> None:
        self._session = session
        self._binds = binds
        self._url = url
        self._binding: set[str] = set()

    def is_binding(self, uid: str) -> bool:
        return uid in self._binding

    async def attempt(self, pod: Json, nodes: Sequence[str], when_bound: WhenBound) -> str:
        """Return why the pod waits, as the extender says it; empty: it is being bound."""
        found = await self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        if found["Error"]:
            return str(found["Error"])
        if not found["NodeNames"]:
            return _counted(found["FailedNodes"], len(nodes))
        scores = await self._post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": found["NodeNames"]})
        node = max(scores, key=lambda score: score["Score"])["Host"]
        self._binding.add(pod["metadata"]["uid"])
        self._binds.create_task(self._bind(pod["metadata"], node, when_bound))
        return ""

    async def _bind(self, metadata: Json, node: str, when_bound: WhenBound) -> None:
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        try:
            when_bound(node, (await self._post("bind", {**names, "Node": node}))["Error"])
        except aiohttp.ClientError as error:
            when_bound(node, f"the extender does not answer: {error}")
        finally:
            self._binding.discard(metadata["uid"])

    async def _post(self, verb: str, body: Json) -> Any:
        async with self._session.post(f"{self._url}/carrel/{verb}", json=body) as answer:
            return await answer.json()


def _counted(refused: dict[str, str], nodes: int) -> str:
    """Return the sentence that kube-scheduler would write in the pod's Event."""
    reasons: dict[str, int] = {}
    for why in refused.values():
        reasons[why] = reasons.get(why, 0) + 1
    return f"0/{nodes} nodes are available: " + ", ".join(f"{count} {why}" for why, count in reasons.items())


ROUND_S = 0.25
MESSAGES = 50
TAKEN_BACK = 4
"""So many GPUs that were taken back stay on the screen."""
NEW_PERSON = "you"
"""Whoever tries the demo: a person without bookings, with a namespace."""
HINTS = {
    AgentMode.NATIVE: "Carrel's device plugin hands the GPUs over. Beside NVIDIA's plugin: carrel demo --mode coexist",
    AgentMode.COEXIST: "NVIDIA's plugin hands the GPUs over, and reservation pods hold those that pods share",
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    nodes: list[Node]
    manifests: list[dict[str, Any]]
    seed: int = 1
    port: int = 0
    """Where the embedded API listens; 0: any free port."""
    create_every_s: float = 0.8
    lifetime_s: float = 20.0
    """How long a pod runs, on average."""
    pods: int = 40
    """At once, at most."""
    has_story: bool = True
    """Whether it begins with the story (`demo.story`)."""
    only_story: bool = False
    """Whether it is over then."""
    mode: AgentMode = AgentMode.NATIVE
    """Who hands GPUs over: Carrel's device plugin, or NVIDIA's."""
    days: int = 0
    """Before now, on which people have booked and used GPUs."""

    @property
    def kubelet_chooses(self) -> bool:
        return self.mode is AgentMode.COEXIST


class Demo:
    """One replica of the extender, and a simulated kube-scheduler that asks it about every pod."""

    def __init__(self, client: Client, url: str, mode: AgentMode = AgentMode.NATIVE) -> None:
        self.url = url
        self.booking_url = ""
        """Empty until the booking service has started."""
        self.story: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """When the story is over: why it did not come true, or nothing."""
        self._mode = mode
        self.carrel = ClusterState(client)
        self._coverage = CoverageReader(self.carrel)
        self._waiting: dict[str, str] = {}
        self._messages: deque[str] = deque(maxlen=MESSAGES)
        self._taken_back: deque[str] = deque(maxlen=TAKEN_BACK)
        self._placed = 0
        self.on_log: Callable[[str], None] = lambda line: None
        self.carrel.pods.on_change(self._see_pod)

    def view(self) -> DemoView:
        booking = f"book at {self.booking_url} · " if self.booking_url else ""
        headline = f"Carrel demo · {self._placed} pods placed · {booking}kubectl --server {self.url} get pods -A"
        gpus = {node: shown_gpus(self.carrel.cluster_ledger, node) for node in self.carrel.ledger.nodes}
        return DemoView(
            gpus,
            dict(self._waiting),
            tuple(self._messages),
            headline,
            self._bookings(),
            tuple(self._taken_back),
            self._reservations(gpus),
            (f"Sign in as {owner_of(NEW_PERSON)}: your pods are in the namespace {NEW_PERSON}.", HINTS[self._mode]),
        )

    def _reservations(self, gpus: Mapping[NodeName, Sequence[GpuEntry]]) -> list[str]:
        lines = []
        by_uuid = {entry.gpu.uuid: entry for entries in gpus.values() for entry in entries}
        for pod in filter(kai_reservation.is_reservation, self.carrel.pods.store):
            entry = by_uuid.get(GpuUuid(pod.metadata.annotations.get(kai_reservation.RESERVED_GPU, "")))
            words = "has not been given a GPU yet"
            if entry is not None:
                users = ", ".join(sorted(share.holder.full_name for share in entry.shares.values()))
                words = f"was given {entry.gpu} and holds it for {users or 'nobody any more'}"
            lines.append(f"reservation pod {pod.metadata.name} {words}")
        return sorted(lines)

    def _bookings(self) -> list[str]:
        """Return a line for each booking that runs: who, how much of it is used, and which of the person's pods are
        beyond it. Those that are in use come first."""
        lines = []
        for booking in self.carrel.bookings.store:
            use = self._coverage.use_of(booking.metadata.name)
            if use is None:
                continue
            pods = [pod for person in use.entitlement.people for pod in self.carrel.watches.pods_of(person)]
            beyond = [pod for pod in pods if pod.spec.node_name and self._coverage.of(pod).beyond is not None]
            line = f"{booking.spec.user} booked {self.carrel.words.amount(use.entitlement)}: {use}"
            names = ", ".join(sorted(holder_of(pod).full_name for pod in beyond))
            lines.append((not use.used, f"{line}; beyond it, on what is free: {names}" if names else line))
        return [line for _, line in sorted(lines)]

    async def run(self) -> None:
        """Runs until it is cancelled."""
        for_all = SchedulerOptions(schedulers=None)  # people of the demo need not name a scheduler
        scheduling = scheduler_on(self.carrel)
        app = extender_app(handlers_on(self.carrel, scheduling, for_all))
        options = self.carrel.options
        rules = PlacementRules.of(options, for_all.schedulers, spreads=for_all.spread)
        await report_rules(self.carrel.cluster, options.namespace, rules)
        async with (
            serving(app, Address()) as extender,
            aiohttp.ClientSession() as session,
            asyncio.TaskGroup() as binds,
        ):
            self.log(f"kube-scheduler would ask {extender}/carrel")
            scheduler = SimulatedScheduler(session, binds, extender)
            collector = collector_on(self.carrel)
            while True:
                scheduling.expire_promises()
                try:
                    for freed in await collector.collect():
                        self.log(f"{freed.holder} released a GPU of {freed.node}: {freed.why}")
                    await self._schedule(scheduler)
                except (ClusterError, aiohttp.ClientError) as error:
                    self.log(f"a call failed: {error}")
                await asyncio.sleep(ROUND_S)

    async def _schedule(self, scheduler: SimulatedScheduler) -> None:
        pods = [pod for pod in self.carrel.pods.store if is_waiting(pod)]
        pods.sort(key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        waiting = {}
        for pod in pods:
            if scheduler.is_binding(pod.metadata.uid):
                continue
            title = f"{pod.metadata.namespace}/{pod.metadata.name}"
            why = await self._attempt(scheduler, pod, list(self.carrel.eligible_nodes.nodes_for(pod)))
            if why:
                waiting[title] = why
                if self._waiting.get(title) != why:
                    self.log(f"{title} waits: {why}")
                    await self._mark_unschedulable(pod, why)
        self._waiting = waiting

    async def _attempt(self, scheduler: SimulatedScheduler, pod: Pod, nodes: list[str]) -> str:
        """Empty: the pod is being bound. Otherwise why it waits, in one line."""
        try:
            document = await self.carrel.cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return ""  # it was deleted meanwhile
        told = await scheduler.attempt(document, nodes, partial(self._log_bound, pod))
        why = self.carrel.waiting_reason.why(pod) if told else None
        return why.reason if why else told

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is None and new is not None and (how := how_lost(new, self.carrel.options.zone)):
            name = f"{new.metadata.namespace}/{new.metadata.name}"
            self._taken_back.append(f"{name} continues without a GPU: {how}{self._holdings()}")
            self.log(self._taken_back[-1])

    def _holdings(self) -> str:
        """Who holds how much without a booking: GPUs are taken back from those above the equal share first."""
        people = {person_of(pod) for pod in self.carrel.pods.store} - {""}
        held = {person: self.carrel.person_limit.held_by(person) for person in people}
        most_first = sorted(((gpus, person) for person, gpus in held.items() if gpus), reverse=True)
        words = ", ".join(f"{person} {float(gpus):.1f} GPUs" for gpus, person in most_first)
        return f"; without a booking hold now: {words}" if words else ""

    async def _mark_unschedulable(self, pod: Pod, why: str) -> None:
        """Write what kube-scheduler would: the controller takes GPUs back only for a pod with this condition."""
        condition = {"type": SCHEDULED, "status": "False", "reason": UNSCHEDULABLE, "message": why}
        patch = MergePatch({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}})
        with suppress(NotFound, Conflict):  # it was deleted meanwhile
            await self.carrel.cluster.patch(
                PODS, pod.metadata.name, patch, pod.metadata.namespace, subresource="status"
            )

    def _log_bound(self, pod: Pod, node: NodeName, error: str) -> None:
        title = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if error:
            self.log(f"{title} was not bound: {error}")
            return
        self._placed += 1
        indices = shown_indices(self.carrel.cluster_ledger, node, pod.metadata.uid)
        where = f"{node}, GPU {', '.join(map(str, indices))}" if indices else node
        self.log(f"{title} placed on {where}")

    def log(self, line: str) -> None:
        self._messages.append(f"{utc_now():%H:%M:%S}  {line}")
        self.on_log(self._messages[-1])


@asynccontextmanager
async def running_demo(options: DemoOptions) -> AsyncIterator[Demo]:
    """The demo runs while the block does."""
    tokens, address = ComponentTokens(), WebhookAddress()
    api = EmbeddedApi(Settings(tokens=tokens.users(), service_address=address))
    admin = Client(api)
    with TemporaryDirectory(prefix="carrel-demo-") as folder:
        async with aclosing(api), serve(api, port=options.port) as served, asyncio.TaskGroup() as tasks:
            await install(admin, options.mode)
            demo = Demo(Client(tokens.transport("extender", api)), served.url, options.mode)
            agent, reservation = (Client(tokens.transport(name, api)) for name in ("agent", RESERVATION))
            context = NodeContext(admin, agent, reservation, options.mode, Path(folder))
            kubelets = DemoKubelets(context, options.nodes, demo.carrel.pods, utc_now)
            await kubelets.announce()
            running = [tasks.create_task(demo.carrel.informers.run())]
            await demo.carrel.informers.wait_synced()
            running.append(tasks.create_task(kubelets.run()))
            running.append(tasks.create_task(demo.run()))
            starter = ComponentStarter(Path(folder), demo.url, tokens)
            running.append(tasks.create_task(_run_people(demo, admin, starter, address, options)))
            try:
                yield demo
            finally:
                for task in running:
                    task.cancel()


class WebhookAddress:
    """The address behind the webhook's Service: the embedded API has no cluster network."""

    def __init__(self) -> None:
        self.url = ""

    def __call__(self, namespace: str, name: str, port: int) -> str:
        return self.url or "https://127.0.0.1:9"  # nothing listens there


async def install(client: Client, mode: AgentMode = AgentMode.NATIVE) -> None:
    for crd in crds():
        await client.create(CRDS, crd)
    for priority in priority_classes():
        await client.create(PRIORITY_CLASSES, priority)
    for hook in webhooks(for_embedded_api=True):
        await client.create(MUTATING_WEBHOOKS, hook)
    for name in (NAMESPACE, kai_reservation.KAI_0_17.namespace):
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": {"name": name}})
    given = body_of(GIVEN, NAMESPACE, {TEXT: f"{CONFIGURATION}nodes: {{plugin: {mode.value}}}\n"})
    await client.create(CONFIG_MAPS, given, NAMESPACE)


async def _run_people(
    demo: Demo, admin: Client, starter: ComponentStarter, address: WebhookAddress, options: DemoOptions
) -> None:
    """The other components, and the people who use them. Pods are created once the webhook runs: a pod that it has not
    admitted would have no tier."""
    random = Random(options.seed)  # noqa: S311 # not a secret
    workload = Workload(admin, options.manifests, random, demo.log)
    nodes = [node for node in options.nodes if not options.kubelet_chooses or has_one_model(node)]
    shown_s = 0.0 if options.only_story else SHOWN_S
    story = Story(admin, demo.carrel, nodes, options.kubelet_chooses, demo.log, shown_s)
    if options.only_story and (why := story.why_impossible()):
        demo.story.set_result(why)
        return
    await workload.prepare()
    await create_namespace(admin, NEW_PERSON)
    needed = story.bookings() if options.has_story else []
    database = f"sqlite:///{starter.folder}/bookings.db"
    demo.log("people make their bookings")
    past = history(options.days, nodes, random)
    # Before the others start: to import the store holds up the API, by whose answers they set their clocks.
    await make_bookings(database, nodes, past, [*needed, *bookings_of(workload.owners(), nodes)])
    await write_usage_history(database, nodes, options.days, random, UTC)
    demo.log("booking service, webhook and controller are starting")
    async with running_components(starter, database) as (booking, webhook), asyncio.TaskGroup() as tasks:
        address.url, demo.booking_url = webhook, booking
        demo.log(f"book at {booking}: sign in with any e-mail address, there is no password")
        if options.has_story:
            demo.story.set_result(await story.run())
            if options.only_story:
                return
            tasks.create_task(story.end())
        await workload.run(options.create_every_s, options.lifetime_s, options.pods)
