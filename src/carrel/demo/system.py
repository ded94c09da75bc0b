"""The whole demo: the embedded Kubernetes API, simulated nodes and users, the extender here, the rest as processes."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import aiohttp

from carrel.demo.component_processes import ComponentTokens, bookings_of, make_bookings, running_components
from carrel.demo.kubelets import SimulatedKubelets
from carrel.demo.screen import DemoView
from carrel.demo.simulated_scheduler import SimulatedScheduler
from carrel.demo.story import Story
from carrel.demo.workload import Workload
from carrel.dialects.tier import person_of
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Conflict, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import CRDS, MUTATING_WEBHOOKS, NAMESPACES, PODS, PRIORITY_CLASSES
from carrel.leases.cluster_state import NAMESPACE, ClusterState, utc_now
from carrel.leases.coverage_reader import CoverageReader
from carrel.leases.coverage_words import WORDS
from carrel.leases.placement_rules import PlacementRules, report_rules
from carrel.leases.pod_progress import SCHEDULED, holder_of, is_waiting
from carrel.ledger.gpus import Node
from carrel.lifecycle.assembly import collector_on
from carrel.lifecycle.hand_over import how_lost
from carrel.lifecycle.revocation import UNSCHEDULABLE
from carrel.manifests import crds, priority_classes, webhooks
from carrel.scheduling.app import extender_app
from carrel.scheduling.assembly import SchedulerOptions, handlers_on, scheduler_on
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.http_server import serve

ROUND_S = 0.25
MESSAGES = 50
TAKEN_BACK = 4
"""So many GPUs that were taken back stay on the screen."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    nodes: list[Node]
    manifests: list[dict[str, Any]]
    seed: int = 1
    port: int = 0
    """Of the embedded API; 0: any free one."""
    create_every_s: float = 0.8
    lifetime_s: float = 20.0
    """Of a pod, on average."""
    pods: int = 40
    """At once, at most."""
    has_story: bool = True
    """Whether it begins with the story (`demo.story`)."""


class Demo:
    """One replica of the extender, and a simulated kube-scheduler that asks it about every pod."""

    def __init__(self, client: Client, url: str) -> None:
        self.url = url
        self.booking_url = ""
        """Empty until the booking service has started."""
        self.carrel = ClusterState(client)
        self._coverage = CoverageReader(self.carrel)
        self._waiting: dict[str, str] = {}
        self._messages: deque[str] = deque(maxlen=MESSAGES)
        self._taken_back: deque[str] = deque(maxlen=TAKEN_BACK)
        self._placed = 0
        self.carrel.pods.on_change(self._see_pod)

    def view(self) -> DemoView:
        booking = f"book at {self.booking_url} · " if self.booking_url else ""
        headline = f"Carrel demo · {self._placed} pods placed · {booking}kubectl --server {self.url} get pods -A"
        return DemoView(
            self.carrel.ledger,
            dict(self._waiting),
            tuple(self._messages),
            headline,
            self._bookings(),
            tuple(self._taken_back),
        )

    def _bookings(self) -> list[str]:
        """Of each booking that runs: who, how much of it is used, and which of the person's pods are beyond it."""
        lines = []
        for booking in self.carrel.bookings.store:
            use = self._coverage.use_of(booking.metadata.name)
            if use is None:
                continue
            pods = [pod for person in use.entitlement.people for pod in self.carrel.pods_of(person)]
            beyond = [pod for pod in pods if pod.spec.node_name and self._coverage.of(pod).beyond is not None]
            line = f"{booking.spec.user} booked {WORDS.amount(use.entitlement)}: {use}"
            names = ", ".join(sorted(holder_of(pod).full_name for pod in beyond))
            lines.append(f"{line}; beyond it, on what is free: {names}" if names else line)
        return sorted(lines)

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
                        self.log(f"{freed.holder} released GPU {freed.index} of {freed.node}: {freed.why}")
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
            why = await self._attempt(scheduler, pod, list(self.carrel.nodes_for(pod)))
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
        attempt = await scheduler.attempt(document, nodes, partial(self._log_bound, pod))
        if attempt.node:
            return ""
        why = self.carrel.why(pod)
        return why.reason if why else attempt.why

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is None and new is not None and (how := how_lost(new)):
            name = f"{new.metadata.namespace}/{new.metadata.name}"
            self._taken_back.append(f"{name} continues without a GPU: {how}{self._holdings()}")
            self.log(self._taken_back[-1])

    def _holdings(self) -> str:
        """Who holds how much without a booking: GPUs are taken back from those above the equal share first."""
        people = {person_of(pod) for pod in self.carrel.pods.store} - {""}
        held = {person: self.carrel.covered_pods.uncovered_gpus(person) for person in people}
        most_first = sorted(((gpus, person) for person, gpus in held.items() if gpus), reverse=True)
        words = ", ".join(f"{person} {float(gpus):.1f} GPUs" for gpus, person in most_first)
        return f"; without a booking hold now: {words}" if words else ""

    async def _mark_unschedulable(self, pod: Pod, why: str) -> None:
        """As kube-scheduler does: the controller takes GPUs back only for a pod with this condition."""
        condition = {"type": SCHEDULED, "status": "False", "reason": UNSCHEDULABLE, "message": why}
        patch = MergePatch({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}})
        with suppress(NotFound, Conflict):  # it was deleted meanwhile
            await self.carrel.cluster.patch(
                PODS, pod.metadata.name, patch, pod.metadata.namespace, subresource="status"
            )

    def _log_bound(self, pod: Pod, node: str, error: str) -> None:
        title = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if error:
            self.log(f"{title} was not bound: {error}")
            return
        self._placed += 1
        held = self.carrel.ledger.shares_of(pod.metadata.uid)
        cards = [card for card in self.carrel.ledger.cards(node) if card.gpu.uuid in held]
        where = f"{node}, GPU {', '.join(str(card.gpu.index) for card in cards)}" if cards else node
        self.log(f"{title} placed on {where}")

    def log(self, line: str) -> None:
        self._messages.append(f"{utc_now():%H:%M:%S}  {line}")


@asynccontextmanager
async def running_demo(options: DemoOptions) -> AsyncIterator[Demo]:
    """The demo runs while the block does."""
    tokens, address = ComponentTokens(), WebhookAddress()
    api = EmbeddedApi(Settings(tokens=tokens.users(), service_address=address))
    admin = Client(api)
    async with aclosing(api), serve(api, port=options.port) as served, asyncio.TaskGroup() as tasks:
        await install(admin)
        demo = Demo(Client(tokens.transport("extender", api)), served.url)
        kubelets = SimulatedKubelets(admin, options.nodes, demo.carrel.pods, utc_now)
        workload = Workload(admin, options.manifests, Random(options.seed), demo.log)  # noqa: S311 # not a secret
        story = Story(admin, demo.carrel, options.nodes, demo.log) if options.has_story else None
        await kubelets.announce()
        await workload.prepare()
        running = [tasks.create_task(demo.carrel.informers.run())]
        await demo.carrel.informers.wait_synced()
        running.append(tasks.create_task(kubelets.run()))
        running.append(tasks.create_task(demo.run()))
        rest = tasks.create_task(_run_components(demo, tokens, address, options, workload, story))
        try:
            yield demo
        finally:
            for task in (*running, rest):
                task.cancel()


class WebhookAddress:
    """The address behind the webhook's Service: the embedded API has no cluster network."""

    def __init__(self) -> None:
        self.url = ""

    def __call__(self, namespace: str, name: str, port: int) -> str:
        return self.url or "https://127.0.0.1:9"  # nothing listens there


async def install(client: Client) -> None:
    for crd in crds():
        await client.create(CRDS, crd)
    for priority in priority_classes():
        await client.create(PRIORITY_CLASSES, priority)
    for hook in webhooks(for_embedded_api=True):
        await client.create(MUTATING_WEBHOOKS, hook)
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": {"name": NAMESPACE}})


async def _run_components(
    demo: Demo,
    tokens: ComponentTokens,
    address: WebhookAddress,
    options: DemoOptions,
    workload: Workload,
    story: Story | None,
) -> None:
    """Pods are created once the webhook runs: a pod that it has not admitted would have no tier."""
    demo.log("booking service, webhook and controller are starting")
    async with running_components(demo.url, tokens) as urls:
        address.url, demo.booking_url = urls.webhook, urls.booking
        demo.log(f"book at {urls.booking}: sign in with any e-mail address, there is no password")
        needed = story.bookings() if story is not None else []
        await make_bookings(urls, [*needed, *bookings_of(workload.owners(), options.nodes)])
        async with asyncio.TaskGroup() as tasks:
            if story is not None:
                await story.run()
                tasks.create_task(story.end())
            await workload.run(options.create_every_s, options.lifetime_s, options.pods)
