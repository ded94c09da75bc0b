"""The whole system in one process: the embedded Kubernetes API, simulated nodes, pods of every dialect, one ledger."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import aiohttp

from carrel.demo.kubelets import Kubelets
from carrel.demo.processes import Badges, make_bookings, staff
from carrel.demo.scheduler import StandIn
from carrel.demo.screen import View
from carrel.demo.workload import Workload
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, Conflict, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import CRDS, MUTATING_WEBHOOKS, NAMESPACES, PODS, PRIORITY_CLASSES
from carrel.leases.cluster_state import NAMESPACE, ClusterState, utc_now
from carrel.leases.pods import SCHEDULED, is_waiting
from carrel.ledger.gpus import Node
from carrel.lifecycle.assembly import collector_on
from carrel.lifecycle.hand_over import how_lost
from carrel.lifecycle.revocation import UNSCHEDULABLE
from carrel.manifests import crds, priority_classes, webhooks
from carrel.scheduling.app import extender_app
from carrel.scheduling.assembly import handlers_on, scheduler_on
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.http_server import serve

ROUND_S = 0.25
STORY = 50


@dataclass(frozen=True, slots=True)
class Script:
    """What is played."""

    nodes: list[Node]
    manifests: list[dict[str, Any]]
    seed: int = 1
    port: int = 0
    every_s: float = 0.8
    stay_s: float = 20.0
    pods: int = 40


class Play:
    """One replica of Carrel behind its extender, and a stand-in for kube-scheduler that asks it about every pod."""

    def __init__(self, client: Client, url: str) -> None:
        self.url = url
        self.pages = ""
        """Where the booking service is, once it is open."""
        self.carrel = ClusterState(client)
        self._waiting: dict[str, str] = {}
        self._story: deque[str] = deque(maxlen=STORY)
        self._placed = 0
        self.carrel.pods.on_change(self._see_pod)

    def view(self) -> View:
        pages = f"book at {self.pages} · " if self.pages else ""
        headline = f"Carrel demo · {self._placed} pods placed · {pages}kubectl --server {self.url} get pods -A"
        return View(self.carrel.ledger, dict(self._waiting), tuple(self._story), headline)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        app = extender_app(handlers_on(self.carrel, scheduler_on(self.carrel)))
        async with (
            serving(app, Address()) as extender,
            aiohttp.ClientSession() as session,
            asyncio.TaskGroup() as binds,
        ):
            self.tell(f"kube-scheduler would ask {extender}/carrel")
            scheduler = StandIn(session, binds, extender)
            collector = collector_on(self.carrel)
            while True:
                try:
                    for freed in await collector.collect():
                        self.tell(f"{freed.holder} left GPU {freed.index} of {freed.node}: {freed.why}")
                    await self._schedule(scheduler)
                except (ClusterError, aiohttp.ClientError) as error:
                    self.tell(f"no answer: {error}")
                await asyncio.sleep(ROUND_S)

    async def _schedule(self, scheduler: StandIn) -> None:
        pods = [pod for pod in self.carrel.pods.store if is_waiting(pod)]
        pods.sort(key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        nodes = [node.metadata.name for node in self.carrel.nodes.store]
        waiting = {}
        for pod in pods:
            if scheduler.is_binding(pod.metadata.uid):
                continue
            title = f"{pod.metadata.namespace}/{pod.metadata.name}"
            why = await self._attempt(scheduler, pod, nodes)
            if why:
                waiting[title] = why
                if self._waiting.get(title) != why:
                    self.tell(f"{title} waits: {why}")
                    await self._say_unschedulable(pod, why)
        self._waiting = waiting

    async def _attempt(self, scheduler: StandIn, pod: Pod, nodes: list[str]) -> str:
        """Empty: it is being bound. Else why not, in one line."""
        try:
            document = await self.carrel.cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return ""  # it has just gone
        attempt = await scheduler.attempt(document, nodes, partial(self._tell_bound, pod))
        if attempt.node:
            return ""
        why = self.carrel.why(pod)
        return why.reason if why else attempt.why

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is None and new is not None and (how := how_lost(new)):
            self.tell(f"{new.metadata.namespace}/{new.metadata.name} goes on without a GPU: {how}")

    async def _say_unschedulable(self, pod: Pod, why: str) -> None:
        """As kube-scheduler does: only then the controller takes cards back for it."""
        condition = {"type": SCHEDULED, "status": "False", "reason": UNSCHEDULABLE, "message": why}
        patch = MergePatch({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}})
        with suppress(NotFound, Conflict):  # it has just gone
            await self.carrel.cluster.patch(
                PODS, pod.metadata.name, patch, pod.metadata.namespace, subresource="status"
            )

    def _tell_bound(self, pod: Pod, node: str, error: str) -> None:
        title = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if error:
            self.tell(f"{title} was not bound: {error}")
            return
        self._placed += 1
        held = self.carrel.ledger.shares_of(pod.metadata.uid)
        cards = [card for card in self.carrel.ledger.cards(node) if card.gpu.uuid in held]
        where = f"{node}, GPU {', '.join(str(card.gpu.index) for card in cards)}" if cards else node
        self.tell(f"{title} placed on {where}")

    def tell(self, line: str) -> None:
        self._story.append(f"{utc_now():%H:%M:%S}  {line}")


@asynccontextmanager
async def playing(script: Script) -> AsyncIterator[Play]:
    """The demo runs while the block does."""
    badges, address = Badges(), _WebhookAddress()
    api = EmbeddedApi(Settings(tokens=badges.users(), service_address=address))
    people = Client(api)
    async with aclosing(api), serve(api, port=script.port) as served, asyncio.TaskGroup() as tasks:
        await _install(people)
        play = Play(Client(badges.worn("extender", api)), served.url)
        kubelets = Kubelets(people, script.nodes, play.carrel.pods, utc_now)
        workload = Workload(people, script.manifests, Random(script.seed), play.tell)  # noqa: S311 # a show, no secret
        await kubelets.announce()
        await workload.prepare()
        running = [tasks.create_task(play.carrel.informers.run())]
        await play.carrel.informers.wait_synced()
        running.append(tasks.create_task(kubelets.run()))
        running.append(tasks.create_task(play.run()))
        opening = tasks.create_task(_open_doors(play, badges, address, script, workload))
        try:
            yield play
        finally:
            for task in (*running, opening):
                task.cancel()


class _WebhookAddress:
    """Where the webhook's Service leads: there is no network of Services here."""

    def __init__(self) -> None:
        self.url = ""

    def __call__(self, namespace: str, name: str, port: int) -> str:
        return self.url or "https://127.0.0.1:9"  # nobody listens there


async def _install(client: Client) -> None:
    for crd in crds():
        await client.create(CRDS, crd)
    for priority in priority_classes():
        await client.create(PRIORITY_CLASSES, priority)
    for hook in webhooks(for_embedded_api=True):
        await client.create(MUTATING_WEBHOOKS, hook)
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": {"name": NAMESPACE}})


async def _open_doors(play: Play, badges: Badges, address: _WebhookAddress, script: Script, workload: Workload) -> None:
    """People come when the doors are open: a pod that nobody admitted would have no tier."""
    play.tell("booking service, webhook and controller are starting")
    async with staff(play.url, badges) as opened:
        address.url, play.pages = opened.webhook, opened.booking
        await make_bookings(opened, workload.owners(), script.nodes, utc_now())
        play.tell(f"book at {opened.booking}: say who you are, there is no password")
        await workload.run(script.every_s, script.stay_s, script.pods)
