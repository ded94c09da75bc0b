"""The whole system in one process: the embedded Kubernetes API, simulated nodes, pods of every dialect, one ledger."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import aiohttp

from carrel.adapters.extender import extender_app
from carrel.adapters.kube.client import Client
from carrel.adapters.memory import EmbeddedApi
from carrel.adapters.memory.http import serve
from carrel.adapters.simulation.kubelets import Kubelets
from carrel.adapters.web import Address, serving
from carrel.core.gpus import Node
from carrel.doors.demo.screen import View
from carrel.doors.demo.stand_in import StandIn
from carrel.doors.demo.workload import Workload
from carrel.manifests import crds
from carrel.ports.cluster import ClusterError, NotFound
from carrel.protocols.kubernetes.resources import CRDS, NAMESPACES, PODS
from carrel.protocols.kubernetes.shapes import Pod
from carrel.wiring import NAMESPACE, Carrel, desk_of, utc_now

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
        self.carrel = Carrel(client)
        self._waiting: dict[str, str] = {}
        self._story: deque[str] = deque(maxlen=STORY)
        self._placed = 0

    def view(self) -> View:
        headline = f"Carrel demo · {self._placed} pods placed · kubectl --server {self.url} get pods -A"
        return View(self.carrel.books.ledger, dict(self._waiting), tuple(self._story), headline)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        app = extender_app(desk_of(self.carrel))
        async with (
            serving(app, Address()) as extender,
            aiohttp.ClientSession() as session,
            asyncio.TaskGroup() as binds,
        ):
            self._tell(f"kube-scheduler would ask {extender}/carrel")
            scheduler = StandIn(session, binds, extender)
            while True:
                try:
                    for freed in await self.carrel.collector.collect():
                        self._tell(f"{freed.holder} left GPU {freed.index} of {freed.node}: {freed.why}")
                    await self._schedule(scheduler)
                except (ClusterError, aiohttp.ClientError) as error:
                    self._tell(f"no answer: {error}")
                await asyncio.sleep(ROUND_S)

    async def _schedule(self, scheduler: StandIn) -> None:
        pods = [pod for pod in self.carrel.pods.store if not pod.spec.node_name and not pod.metadata.deletion_timestamp]
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
                    self._tell(f"{title} waits: {why}")
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
        why = self.carrel.scheduling.why(pod, nodes)
        return why.reason if why else attempt.why

    def _tell_bound(self, pod: Pod, node: str, error: str) -> None:
        title = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if error:
            self._tell(f"{title} was not bound: {error}")
            return
        self._placed += 1
        held = self.carrel.books.ledger.shares_of(pod.metadata.uid)
        cards = [card for card in self.carrel.books.ledger.cards(node) if card.gpu.uuid in held]
        where = f"{node}, GPU {', '.join(str(card.gpu.index) for card in cards)}" if cards else node
        self._tell(f"{title} placed on {where}")

    def _tell(self, line: str) -> None:
        self._story.append(f"{utc_now():%H:%M:%S}  {line}")


@asynccontextmanager
async def playing(script: Script) -> AsyncIterator[Play]:
    """The demo runs while the block does."""
    api = EmbeddedApi()
    client = Client(api)
    async with serve(api, port=script.port) as served, asyncio.TaskGroup() as tasks:
        for crd in crds():
            await client.create(CRDS, crd)
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": {"name": NAMESPACE}})
        play = Play(client, served.url)
        mirror = play.carrel.mirror
        kubelets = Kubelets(client, script.nodes, play.carrel.pods, utc_now)
        workload = Workload(client, script.manifests, Random(script.seed))  # noqa: S311 # a show, not a secret
        await kubelets.announce()
        await workload.prepare()
        running = [tasks.create_task(mirror.run())]
        await mirror.wait_synced()
        running.append(tasks.create_task(kubelets.run()))
        running.append(tasks.create_task(play.run()))
        running.append(tasks.create_task(workload.run(script.every_s, script.stay_s, script.pods)))
        try:
            yield play
        finally:
            for task in running:
                task.cancel()
