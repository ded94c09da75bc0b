"""`carrel snapshot`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from carrel.settings import ClusterSettings, DialectSettings

if TYPE_CHECKING:
    from carrel.kubernetes.objects.kinds import Pod
    from carrel.leases.cluster_state import ClusterState
    from carrel.simulation.workload import BookingWish, SimulatedCluster, SimulatedPod


@dataclass(frozen=True)
class SnapshotSettings(DialectSettings, ClusterSettings):
    pass


def snapshot(settings: SnapshotSettings) -> None:
    """Print the cluster's GPUs, pods and bookings as JSON, for `carrel simulate --from`.

    People and pods are numbered, not named. Nothing is in it of what pods do: no images, labels, annotations or
    environment. Only GPU pods, and other pods that use CPU of nodes with GPUs.

    Examples:

      carrel snapshot > lab.json

      carrel simulate --from lab.json --add 8xNVIDIA-A100-SXM4-80GB:81920
    """
    from carrel.cli.cluster_reader import read_cluster
    from carrel.cli.options import ClusterQuerySettings, DataFormat
    from carrel.cli.output import print_data
    from carrel.process import cluster_access

    query = ClusterQuerySettings(**vars(settings))
    carrel = read_cluster(query, cluster_access(query))
    print_data(snapshot_of(carrel), DataFormat.JSON)


def snapshot_of(carrel: "ClusterState") -> dict[str, Any]:
    from carrel.parsing.time import seconds
    from carrel.simulation.snapshot import written
    from carrel.simulation.workload import Trace

    pods = [pod for pod in carrel.pods.store if _counts(pod, carrel)]
    bookings = list(carrel.bookings.store)
    times = [pod.metadata.creation_timestamp for pod in pods]
    times += [booking.metadata.creation_timestamp for booking in bookings]
    seconds_since = _clock(times)
    people = _Numbers("user")
    found = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.uid))
    workload = Trace(
        tuple(_pod(pod, f"pod-{number}", carrel, people, seconds_since) for number, pod in enumerate(found, 1)),
        tuple(_wishes(carrel, people, seconds_since)),
    )
    return written(_cluster(carrel), workload, seconds(carrel.options.now()))


class _Numbers(dict[str, str]):
    """A number for each name: `user-1`. The empty name stays empty."""

    def __init__(self, word: str) -> None:
        super().__init__({"": ""})
        self._word = word

    def __missing__(self, name: str) -> str:
        self[name] = number = f"{self._word}-{len(self)}"
        return number


def _counts(pod: "Pod", carrel: "ClusterState") -> bool:
    from carrel.dialects.interface import PodRequest
    from carrel.scheduling.machine_room import FINISHED

    if pod.status.phase in FINISHED or pod.metadata.deletion_timestamp:
        return False
    return isinstance(carrel.requested_by(pod), PodRequest) or pod.spec.node_name in carrel.ledger.rooms


def _clock(times: Iterable[str]) -> Callable[[str], float]:
    from carrel.parsing.time import instant

    def read(text: str) -> datetime:
        return instant(text, "the cluster", "a time")

    first = min((read(each) for each in times if each), default=None)
    return lambda text: (read(text) - first).total_seconds() if text and first is not None else 0.0


def _cluster(carrel: "ClusterState") -> "SimulatedCluster":
    from carrel.scheduling.machine_room import room_of
    from carrel.simulation.workload import SimulatedCluster

    names = sorted(carrel.ledger.nodes)
    nodes = [carrel.cluster_ledger.reported(name) or carrel.ledger.node(name) for name in names]
    machines = {name: room_of(node) for name in names if (node := carrel.nodes.store.get(name)) is not None}
    known = {name: room for name, room in machines.items() if room is not None}
    return SimulatedCluster(tuple(node for node in nodes if node is not None and node.gpus), known)


def _pod(
    pod: "Pod", name: str, carrel: "ClusterState", people: _Numbers, seconds_since: Callable[[str], float]
) -> "SimulatedPod":
    from dataclasses import replace

    from carrel.dialects.interface import PodRequest
    from carrel.dialects.tier import counts_as, person_of
    from carrel.ledger.requests import GpuSelector
    from carrel.scheduling.machine_room import machine_of
    from carrel.simulation.workload import SimulatedPod

    asked = carrel.requested_by(pod)
    request = None
    if isinstance(asked, PodRequest):
        # What a booking narrows it to, and gangs, are of this moment.
        request = replace(asked.request, selector=GpuSelector(), gang=None, node_labels=frozenset())
    owner = people[person_of(pod) or counts_as(pod)]
    return SimulatedPod(name, request, machine_of(pod), owner, seconds_since(pod.metadata.creation_timestamp))


def _wishes(carrel: "ClusterState", people: _Numbers, seconds_since: Callable[[str], float]) -> "Iterable[BookingWish]":
    from carrel.simulation.workload import BookingWish

    for booking in sorted(
        carrel.bookings.store, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)
    ):
        spec = booking.spec
        start, asked = seconds_since(spec.start), seconds_since(booking.metadata.creation_timestamp)
        lasts = seconds_since(spec.end) - start
        if spec.share_of == 1 and lasts > 0:
            user = people[spec.group or spec.user]
            yield BookingWish(user, spec.model, spec.gpus, asked, max(start, asked), lasts)
