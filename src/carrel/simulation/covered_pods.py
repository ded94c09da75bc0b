"""Which pods bookings cover at each moment of a run, by the product's own function (`ledger.coverage`).

What `cluster.coverage.covered_pods` does with watches and Leases is done here with events of the run. Nothing is worked
out for people without a booking that runs. Of many waiting pods of a person that ask alike, only so many are looked at
as the bookings could cover: one that comes later is never covered instead of one that came before it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice

from carrel.ledger.coverage import (
    Covered,
    Entitlement,
    PersonsPod,
    RevocableRoom,
    SharedGpus,
    Uses,
    cover_holders,
    cover_waiting,
    uses_of,
)
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.shares import Coverage, Holder
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.wishes import instant
from carrel.simulation.workload import SimulatedPod

NAMESPACE = "trace"


class CoveredPodsInRun:
    """Pods are known by their names. To be told of every change; `update` after each of those that take GPUs."""

    def __init__(self, state: ClusterInRun) -> None:
        self._ledger = state.ledger
        self._nodes = state.names
        self._gpu_sizes = {entry.gpu.memory for name in state.names for entry in state.ledger.entries(name)}
        self._running: dict[str, dict[str, Entitlement]] = {}  # person → their bookings that run
        self._holding: dict[str, dict[str, PersonsPod]] = {}  # person → name → a pod that holds GPUs
        self._waiting: dict[str, dict[Request, dict[str, PersonsPod]]] = {}  # person → the pods that wait, in order
        self._changed_people: set[str] = set()
        self._holders: dict[str, Covered] = {}
        self._uses: dict[str, Uses] = {}  # person → by pods that hold GPUs
        self._shared = SharedGpus()
        self._room = RevocableRoom(state.ledger, lambda uid: uid not in self._holders)
        self._covered_waiting: dict[str, Covered] = {}
        self._moment = 0
        self._waiting_at = (-1, -1)  # the ledger's version and our own, when that was true

    # --- changes -----------------------------------------------------------------------------------------------------

    def booking_starts(self, entitlement: Entitlement) -> None:
        for person in entitlement.people:
            self._running.setdefault(person, {})[entitlement.booking] = entitlement
            self._changed_people.add(person)
        self._moment += 1

    def booking_ends(self, entitlement: Entitlement) -> list[str]:
        """The pods that it has covered, those that hold GPUs first: they end, unless another booking covers them."""
        for person in entitlement.people:
            theirs = self._running[person]
            del theirs[entitlement.booking]
            if not theirs:
                del self._running[person]
            self._changed_people.add(person)
        self._moment += 1
        known = (*self._holders.items(), *self._covered_waiting.items())
        return [name for name, by in known if by.entitlement.booking == entitlement.booking]

    def pod_waits(self, pod: SimulatedPod, number: int) -> None:
        """`number`: its place among all pods, by arrival."""
        if pod.owner and pod.request is not None:
            alike = self._waiting.setdefault(pod.owner, {}).setdefault(pod.request, {})
            alike[pod.name] = self._persons_pod(pod, number, None)
            self._moment += pod.owner in self._running

    def pod_holds(self, pod: SimulatedPod, number: int, now: datetime) -> None:
        self.pod_leaves(pod)
        if pod.owner and pod.request is not None:
            self._holding.setdefault(pod.owner, {})[pod.name] = self._persons_pod(pod, number, now)
            self._note_change(pod.owner)

    def pod_leaves(self, pod: SimulatedPod) -> None:
        """It has ended, or waits no more."""
        if pod.request is None or not pod.owner:
            return
        alike = self._waiting.get(pod.owner, {}).get(pod.request, {})
        alike.pop(pod.name, None)
        if not alike and pod.owner in self._waiting:
            self._waiting[pod.owner].pop(pod.request, None)
        self._holding.get(pod.owner, {}).pop(pod.name, None)
        self._covered_waiting.pop(pod.name, None)
        if self._holders.pop(pod.name, None) is not None:
            self._shared.remove(pod.name)
        self._note_change(pod.owner)

    def _note_change(self, person: str) -> None:
        if person in self._running:
            self._changed_people.add(person)
            self._moment += 1

    def _persons_pod(self, pod: SimulatedPod, number: int, bound_at: datetime | None) -> PersonsPod:
        # Pods of the same moment are ordered by their names in the product; here in the order of the trace.
        holder = Holder(pod.name, NAMESPACE, f"{number:09}")
        return PersonsPod(
            holder, pod.owner, NAMESPACE, instant(pod.arrives_s), bound_at, request=pod.request, nodes=self._nodes
        )

    # --- who is covered ----------------------------------------------------------------------------------------------

    def is_covered(self, name: str) -> bool:
        """Of a pod that holds GPUs, as of the last update."""
        return name in self._holders

    def update(self, now: datetime) -> None:
        """Works out again who is covered of the pods that hold GPUs, and records it in the ledger."""
        for person in sorted(self._changed_people):
            self._cover_holders(person, now)
        self._changed_people.clear()

    def _cover_holders(self, person: str, now: datetime) -> None:
        pods, uses = self._holding.get(person, {}), uses_of(self._running.get(person, {}).values())
        were_covered = self._holders.keys() & pods.keys()
        covered = cover_holders(self._ledger, uses, pods.values()) if uses else {}
        self._uses[person] = uses
        for name in pods:
            if covered.get(name) != self._holders.get(name):
                self._set(name, covered.get(name), now)
        if not were_covered <= covered.keys():
            self._room.changed()

    def _set(self, name: str, by: Covered | None, now: datetime) -> None:
        self._shared.remove(name)
        self._holders.pop(name, None)
        self._moment += 1
        shares = self._ledger.shares_of(name).values()
        if by is not None:
            self._holders[name] = by
            parts = [share.gpu for share in shares if share.memory is not None]
            self._shared.add(name, by.entitlement, parts)
        booking = by.entitlement.booking if by is not None else ""
        wrong = [share for share in shares if (share.coverage.booking if share.coverage else "") != booking]
        record = Coverage(booking, now) if booking else None
        self._ledger.restore([replace(share, coverage=record) for share in wrong])

    def waiting(self) -> Mapping[str, Covered]:
        """The covered pods that wait, in the order of their arrival."""
        now = (self._ledger.version, self._moment)
        if self._waiting_at != now:
            self._covered_waiting = self._cover_waiting()
            self._waiting_at = now
        return self._covered_waiting

    def _cover_waiting(self) -> dict[str, Covered]:
        found: list[tuple[str, str, Covered]] = []
        with self._room.unchanged():
            for person in sorted(self._running.keys() & self._waiting.keys()):
                pods = {pod.holder.uid: pod for pod in self._to_look_at(person)}
                uses = uses_of(self._running[person].values())
                for booking, use in uses.items():
                    use.add(self._uses[person][booking].gpus)
                covered = cover_waiting(self._room, uses, pods.values(), self._shared)
                found += [(pods[name].holder.name, name, by) for name, by in covered.items()]
        return {name: by for _, name, by in sorted(found, key=lambda each: each[0])}

    def _to_look_at(self, person: str) -> Iterator[PersonsPod]:
        booked = sum(each.gpus for each in self._running[person].values())
        for request, pods in self._waiting[person].items():
            on, per_gpu = request.amount.on, 1
            if request.amount != WHOLE:
                per_gpu = max(memory // on(memory) for memory in self._gpu_sizes)
            yield from islice(pods.values(), min(booked * per_gpu // request.gpus, len(pods)))
