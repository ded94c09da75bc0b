"""Tells `ledger.coverage_index` what happens in a run, and records what it answers.

In the product the controller writes on the Leases which booking covers a pod, within seconds. Here it is recorded in
the ledger as soon as it is known.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime

from carrel.ledger.coverage import Entitlement, PersonsPod
from carrel.ledger.coverage_index import CoverageIndex
from carrel.ledger.shares import Coverage, Holder
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.wishes import instant
from carrel.simulation.workload import SimulatedPod

NAMESPACE = "trace"


class CoveredPodsInRun(CoverageIndex):
    """Pods are known by their names. To be told of every change."""

    def __init__(self, state: ClusterInRun, now: Callable[[], datetime]) -> None:
        super().__init__(state.ledger, now)
        self._nodes = state.names
        self._holding_of: dict[str, dict[str, PersonsPod]] = {}  # person → name → a pod that holds GPUs

    def end_booking(self, entitlement: Entitlement) -> list[str]:
        """The pods that it has covered, those that hold GPUs first: they end, unless another booking covers them."""
        known = (*self._holders.items(), *self._waiting.items())
        self.set_booking(entitlement.booking, None)
        return [name for name, by in known if by.entitlement.booking == entitlement.booking]

    def pod_waits(self, pod: SimulatedPod, number: int) -> None:
        """`number`: its place among all pods, by arrival."""
        if pod.owner and pod.request is not None:
            self._set_waiting(pod.owner, pod.name, self._persons_pod(pod, number))
            self._changed(())

    def pod_holds(self, pod: SimulatedPod, number: int) -> None:
        self.pod_leaves(pod)
        if pod.owner and pod.request is not None:
            bound = replace(self._persons_pod(pod, number), bound_at=self._now())
            self._holding_of.setdefault(pod.owner, {})[pod.name] = bound

    def pod_leaves(self, pod: SimulatedPod) -> None:
        """It has ended, or waits no more."""
        if pod.owner and pod.request is not None:
            self._set_waiting(pod.owner, pod.name, waits=False)
            self._holding_of.get(pod.owner, {}).pop(pod.name, None)
            self._changed((pod.owner,))

    def _persons_pod(self, pod: SimulatedPod, number: int) -> PersonsPod:
        # Pods of the same moment are ordered by their names in the product; here in the order of the trace.
        holder = Holder(pod.name, NAMESPACE, f"{number:09}")
        return PersonsPod(holder, pod.owner, NAMESPACE, instant(pod.arrives_s), None, pod.request, self._nodes)

    def update(self) -> AbstractSet[str]:
        people = super().update()
        for name in [name for person in sorted(people) for name in self._holding_of.get(person, ())]:
            by = self._holders.get(name)
            booking = by.entitlement.booking if by is not None else ""
            shares = self._ledger.shares_of(name).values()
            wrong = [share for share in shares if (share.coverage.booking if share.coverage else "") != booking]
            record = Coverage(booking, self._now()) if booking else None
            self._ledger.restore([replace(share, coverage=record) for share in wrong])
        return people

    def _holding(self, person: str) -> Iterable[PersonsPod]:
        return self._holding_of.get(person, {}).values()

    def _read(self, uid: str) -> PersonsPod | None:
        """Never needed: a run says of each pod what it asks for."""
        return None

    def _is_revocable(self, uid: str) -> bool:
        return uid not in self._holders
