"""What the demo shows first, in every run: what a booking is worth, and from whom a GPU is taken back.

hal holds all GPUs of a model but one, without a booking. Then nia, a newcomer, gets the last one. Then cleo, who has
booked one GPU of that model, creates two pods. For the first a GPU is taken back: one of hal's, although nia's pod has
less to lose. The second is beyond the booking, and runs on what is free.

Each step waits until the one before has happened, so the story is the same on a slow machine.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from carrel.demo.component_processes import DemoBooking
from carrel.demo.workload import create_namespace, owner_of
from carrel.dialects.carrel import GPU_CARDS, GPU_MODEL
from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, Json
from carrel.kubernetes.objects.resources import PODS
from carrel.leases.cluster_state import ClusterState
from carrel.ledger.gpus import Node

MANY, NEWCOMER, BOOKER = "hal", "nia", "cleo"
"""The three people, each in a namespace of that name."""
FEWEST_GPUS = 3
"""Of the model: two for hal, who would not have many otherwise, and one for nia."""
STEP_S = 120.0
"""How long a step may take before the demo goes on without it."""
POLL_S = 0.1
LATER_S = 2.0
"""The newcomer comes so much later. Starts are known to the second: were only the work counted, nia's pod would go."""
SHOWN_S = 12.0
"""The end of the story stays so long before other pods come: longer than between two of the plain outputs."""
STAYS_S = 20.0
"""Then its pods stay so long beside the others."""


def model_of(nodes: Sequence[Node]) -> str:
    """The model that the story is about: the one with the fewest GPUs that are enough. Empty: no model has enough."""
    gpus = Counter(gpu.model for node in nodes for gpu in node.gpus if not gpu.unusable)
    enough = [(count, model) for model, count in gpus.items() if count >= FEWEST_GPUS]
    return min(enough)[1] if enough else ""


@dataclass(frozen=True, slots=True)
class Story:
    cluster: Cluster
    carrel: ClusterState
    nodes: Sequence[Node]
    log: Callable[[str], None]

    def bookings(self) -> list[DemoBooking]:
        """Those that it needs."""
        model = model_of(self.nodes)
        return [DemoBooking(owner_of(BOOKER), model, timedelta(days=4))] if model else []

    async def run(self) -> None:
        """Returns when other pods may come. The booking must have been made."""
        model = model_of(self.nodes)
        if not model:
            return
        for person in (MANY, NEWCOMER, BOOKER):
            await create_namespace(self.cluster, person)
        try:
            async with asyncio.timeout(STEP_S):
                await self._take_all(model)
                self.log(f"{MANY} holds every {model} but one without a booking, and {NEWCOMER}, a newcomer, one")
            async with asyncio.timeout(STEP_S):
                await self._until(lambda: bool(self.carrel.covered_pods.running_for(owner_of(BOOKER), BOOKER)))
                self.log(f"{BOOKER} has booked 1 {model}, and creates two pods")
                await self._start(BOOKER, "train")
                await self._start(BOOKER, "sweep")
        except TimeoutError:
            self.log("the story takes too long: the demo goes on without it")
        await asyncio.sleep(SHOWN_S)

    async def end(self) -> None:
        """Deletes the story's pods after a while, also those that continue without a GPU."""
        await asyncio.sleep(STAYS_S)
        for person in (MANY, NEWCOMER, BOOKER):
            for pod in self.carrel.pods_of(owner_of(person)):
                with suppress(ClusterError):  # it is gone already, or is just being created again
                    await self.cluster.delete(PODS, pod.metadata.name, person)

    async def _take_all(self, model: str) -> None:
        gpus = sum(gpu.model == model and not gpu.unusable for node in self.nodes for gpu in node.gpus)
        for number in range(1, gpus):
            await self._start(MANY, f"train-{number}", model)
        await asyncio.sleep(LATER_S)
        await self._start(NEWCOMER, "first-try", model)

    async def _start(self, person: str, name: str, model: str = "") -> None:
        """Creates a pod that asks for a whole GPU, and waits until it has one."""
        wish = {GPU_MODEL: model} if model else {}
        metadata = {"name": name, "namespace": person, "annotations": {GPU_CARDS: "1", **wish}}
        spec = {"containers": [{"name": "main", "image": "work"}]}
        body = {"apiVersion": "v1", "kind": PODS.kind, "metadata": metadata, "spec": spec}
        await self._create(body, person)
        await self._until(lambda: self._is_placed(person, name))

    async def _create(self, body: Json, namespace: str) -> None:
        while True:
            try:
                await self.cluster.create(PODS, body, namespace)
            except AlreadyExists:
                return
            except ClusterError:
                await asyncio.sleep(POLL_S)  # the webhook does not answer yet
            else:
                return

    def _is_placed(self, person: str, name: str) -> bool:
        pod = self.carrel.pods.store.get(name, person)
        return pod is not None and bool(pod.spec.node_name)

    async def _until(self, has_happened: Callable[[], bool]) -> None:
        while not has_happened():  # noqa: ASYNC110 # many things may have to happen
            await asyncio.sleep(POLL_S)
