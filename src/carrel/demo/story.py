"""What the demo shows first, in every run: what a booking is worth, and from whom a GPU is taken back.

hal holds all GPUs of a model but one, without a booking. Then nia, a newcomer, gets the last one. Then cleo, who has
booked one GPU of that model, creates two pods. For the first a GPU is taken back: one of hal's, although nia's pod has
less to lose. The second is beyond the booking, and runs on what is free.

Beside NVIDIA's plugin it begins with two pods that share a GPU: a reservation pod holds it for them, and says which.

Each step waits until the one before has happened, so the story is the same on a slow machine.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from carrel.cluster.state import ClusterState
from carrel.demo.bookings import DemoBooking
from carrel.demo.workload import create_namespace, owner_of
from carrel.dialects import kai, kai_reservation
from carrel.dialects.carrel import DEVICES, GPU_COUNT, GPU_MODEL, HANDED_OVER
from carrel.dialects.visible_devices import read_devices
from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, Json
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.gpus import Node

MANY, NEWCOMER, BOOKER = "hal", "nia", "cleo"
SHARERS = ("ivy", "tom")
"""The people, each in a namespace of that name."""
FEWEST_GPUS = 3
"""So many of the model are needed: two for hal, who would not have many otherwise, and one for nia."""
STEP_S = 300.0
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
    enough = [(count, model) for model, count in _gpus_by_model(nodes).items() if count >= FEWEST_GPUS]
    return min(enough)[1] if enough else ""


def _gpus_by_model(nodes: Sequence[Node]) -> Counter[str]:
    return Counter(gpu.model for node in nodes for gpu in node.gpus if not gpu.unusable)


class StoryFailed(Exception):
    """What did not happen."""


@dataclass(frozen=True, slots=True)
class Story:
    cluster: Cluster
    carrel: ClusterState
    nodes: Sequence[Node]
    """Those whose GPUs can be asked for by their model."""
    is_shared: bool
    """Beside NVIDIA's plugin, with its own first chapter."""
    log: Callable[[str], None]
    shown_s: float = SHOWN_S

    def bookings(self) -> list[DemoBooking]:
        """Those that it needs."""
        model = model_of(self.nodes)
        return [DemoBooking(owner_of(BOOKER), model, timedelta(days=4))] if model else []

    def why_impossible(self) -> str:
        """Return why it cannot be played in this cluster; empty: it can."""
        is_possible = self.is_shared or model_of(self.nodes)
        return "" if is_possible else f"the cluster has no model with {FEWEST_GPUS} GPUs that can be used"

    async def run(self) -> str:
        """Return when other pods may come: why the story did not come true, or nothing. The booking must exist."""
        try:
            if self.is_shared:
                await self._share()
            if model := model_of(self.nodes):
                await self._take_back(model)
        except StoryFailed as failed:
            self.log(f"{failed}: the demo goes on without the rest of the story")
            return str(failed)
        await asyncio.sleep(self.shown_s)
        return ""

    async def end(self) -> None:
        """Delete the story's pods after a while, also those that continue without a GPU."""
        await asyncio.sleep(STAYS_S)
        for person in (MANY, NEWCOMER, BOOKER):
            await self._delete_pods(person)

    # --- chapter one, beside NVIDIA's plugin -------------------------------------------------------------------------

    async def _share(self) -> None:
        for person in SHARERS:
            await create_namespace(self.cluster, person)
            await self._start(person, "half", {kai.FRACTION: "0.5"})
        first, second = (self._gpu_of(person, "half") for person in SHARERS)
        if first != second:
            raise StoryFailed(f"{SHARERS[0]} has {first} and {SHARERS[1]} has {second}: they share no GPU")
        async with _in_time(f"a reservation pod says that it has {first}"):
            await _until(lambda: bool(self._reservation(first)))
        name, people = self._reservation(first), " and ".join(SHARERS)
        self.log(f"the kubelet gave {first} to the reservation pod {name}, which said so; {people} share that GPU")
        await asyncio.sleep(self.shown_s)
        for person in SHARERS:
            await self._delete_pods(person)
        async with _in_time(f"the reservation of {first} is given back"):
            await _until(lambda: not self._reservation(first))
        self.log(f"nobody shares {first} any more: its reservation pod is deleted, and the GPU is free")

    def _gpu_of(self, person: str, name: str) -> str:
        pod = self._pod(person, name)
        return pod.metadata.annotations.get(DEVICES, "") if pod else ""

    def _reservation(self, gpu: str) -> str:
        """Return the name of the reservation pod that has reported the GPU; empty: there is none."""
        pods = filter(kai_reservation.is_reservation, self.carrel.pods.store)
        found = (pod for pod in pods if pod.metadata.annotations.get(kai_reservation.RESERVED_GPU) == gpu)
        return next((pod.metadata.name for pod in found), "")

    # --- what a booking is worth -------------------------------------------------------------------------------------

    async def _take_back(self, model: str) -> None:
        for person in (MANY, NEWCOMER, BOOKER):
            await create_namespace(self.cluster, person)
        gpus = _gpus_by_model(self.nodes)
        wish = {GPU_COUNT: "1", GPU_MODEL: model}
        for number in range(1, gpus[model]):
            await self._start(MANY, f"train-{number}", wish)
        await asyncio.sleep(LATER_S)
        await self._start(NEWCOMER, "first-try", wish)
        self.log(f"{MANY} holds every {model} but one without a booking, and {NEWCOMER}, a newcomer, one")
        async with _in_time(f"the booking of {BOOKER} runs"):
            await _until(lambda: bool(self.carrel.covered_pods.running_for(owner_of(BOOKER), BOOKER)))
        has_spare = gpus.total() > gpus[model]
        self.log(f"{BOOKER} has booked 1 {model}, and creates {'two pods' if has_spare else 'a pod'}")
        await self._start(BOOKER, "train", {GPU_COUNT: "1"})
        async with _in_time(f"a pod of {MANY} continues without a GPU"):
            await _until(lambda: any(HANDED_OVER in pod.metadata.annotations for pod in self._pods_of(MANY)))
        if any(HANDED_OVER in pod.metadata.annotations for pod in self._pods_of(NEWCOMER)):
            raise StoryFailed(f"{NEWCOMER}, who held one GPU, has lost it")
        if has_spare:
            await self._start(BOOKER, "sweep", {GPU_COUNT: "1"})
        self.log(f"a GPU of {MANY}, who held most, was taken back for {BOOKER}; {NEWCOMER}, who held one, keeps it")

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _start(self, person: str, name: str, annotations: Mapping[str, str]) -> None:
        """Create a pod, and wait until its node reports that its GPU is in use."""
        metadata = {"name": name, "namespace": person, "annotations": {**annotations}}
        spec = {"containers": [{"name": "main", "image": "work"}]}
        body = {"apiVersion": "v1", "kind": PODS.kind, "metadata": metadata, "spec": spec}
        async with _in_time(f"{person}/{name} uses a GPU"):
            await self._create(body, person)
            await _until(lambda: self._uses_gpu(person, name))

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

    async def _delete_pods(self, person: str) -> None:
        for pod in self._pods_of(person):
            with suppress(ClusterError):  # it is gone already, or is just being created again
                await self.cluster.delete(PODS, pod.metadata.name, person)

    def _pods_of(self, person: str) -> Sequence[Pod]:
        return list(self.carrel.watches.pods_of(owner_of(person)))

    def _pod(self, person: str, name: str) -> Pod | None:
        return self.carrel.pods.store.get(name, person)

    def _uses_gpu(self, person: str, name: str) -> bool:
        pod, ledger = self._pod(person, name), self.carrel.cluster_ledger
        node = ledger.reported(pod.spec.node_name) if pod and pod.spec.node_name else None
        if pod is None or node is None:
            return False
        users = {uid for gpu in node.gpus if gpu.uuid in read_devices(pod) for uid in ledger.users_of(gpu)}
        # Where the kubelet chooses, it knows the reservation pod, and not the pods that share the GPU.
        return bool(users) if ledger.kubelet_chooses(node.name) else pod.metadata.uid in users


@asynccontextmanager
async def _in_time(what: str) -> AsyncIterator[None]:
    """`what`: what is true when the block ends."""
    try:
        async with asyncio.timeout(STEP_S):
            yield
    except TimeoutError:
        raise StoryFailed(f"after {STEP_S:.0f} s it is still not true that {what}") from None


async def _until(has_happened: Callable[[], bool]) -> None:
    while not has_happened():  # noqa: ASYNC110 # many things may have to happen
        await asyncio.sleep(POLL_S)
