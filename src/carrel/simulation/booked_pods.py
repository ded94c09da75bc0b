"""Booked pods in a run: whom bookings cover, and from whom a booked pod gets its GPUs if none are free.

`ledger.coverage_index` is told what happens in a run, and its answers are recorded. In the product the controller
writes on the Leases which booking covers a pod, within seconds. Here it is recorded in the ledger as soon as it is
known.

Who loses GPUs, `ledger.victims` decides, as in the product. The CPU and memory of the pods that lose their GPUs count:
a node will do if it has enough once they are gone.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime

from carrel.ids import NO_BOOKING, HolderId, NodeName, PersonId
from carrel.ledger.coverage import Entitlement, PersonsPod
from carrel.ledger.coverage_index import CoverageIndex
from carrel.ledger.machines import NOTHING, MachineRoom
from carrel.ledger.placement import WaitingPod
from carrel.ledger.shares import Coverage, Holder
from carrel.ledger.victims import OpportunisticPod, Opportunists, Revocation, revoke
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.policies import Choice
from carrel.simulation.wishes import instant
from carrel.simulation.workload import SimulatedPod

NAMESPACE = "trace"


class CoveredPodsInRun(CoverageIndex):
    """Pods are known by their names. To be told of every change."""

    def __init__(self, state: ClusterInRun, now: Callable[[], datetime]) -> None:
        super().__init__(state.ledger, now)
        self._nodes = state.names
        self._holding_of: dict[PersonId, dict[HolderId, PersonsPod]] = {}  # person → name → a pod that holds GPUs

    def end_booking(self, entitlement: Entitlement) -> list[HolderId]:
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

    def update(self) -> AbstractSet[PersonId]:
        people = super().update()
        for name in [name for person in sorted(people) for name in self._holding_of.get(person, ())]:
            by = self._holders.get(name)
            booking = by.entitlement.booking if by is not None else NO_BOOKING
            shares = self._ledger.shares_of(name).values()
            wrong = [share for share in shares if (share.coverage.booking if share.coverage else "") != booking]
            record = Coverage(booking, self._now()) if booking else None
            self._ledger.restore([replace(share, coverage=record) for share in wrong])
        return people

    def _holding(self, person: PersonId) -> Iterable[PersonsPod]:
        return self._holding_of.get(person, {}).values()

    def _read(self, uid: HolderId) -> PersonsPod | None:
        """Never needed: a run says of each pod what it asks for."""
        return None

    def _is_revocable(self, uid: HolderId) -> bool:
        return uid not in self._holders


@dataclass(frozen=True, slots=True)
class RunningPod:
    pod: SimulatedPod
    choice: Choice
    as_victim: OpportunisticPod


def revoke_in_run(
    state: ClusterInRun,
    waiting: WaitingPod,
    asked: SimulatedPod,
    opportunistic: Mapping[HolderId, RunningPod],
    now: datetime,
) -> Revocation | None:
    """What a booked pod gets that finds no room, and from whom. `opportunistic` are those who may lose GPUs, by name.
    None: it has to wait."""
    pods = Opportunists({name: each.as_victim for name, each in opportunistic.items()})
    nodes = _nodes(state, asked, opportunistic.values())
    while nodes:
        answer = revoke(state.ledger, pods, replace(waiting, nodes=tuple(nodes)), now)
        if not isinstance(answer, Revocation):
            return None
        given = _sum(opportunistic[victim.uid].pod.machine for victim in answer.victims)
        if state.machine_fits_with(asked, answer.node, given):
            return answer
        nodes.remove(answer.node)
    return None


def _nodes(state: ClusterInRun, asked: SimulatedPod, opportunistic: Iterable[RunningPod]) -> list[NodeName]:
    """Those with opportunistic pods, and enough CPU and memory, were all of these gone. Not where the GPUs are free
    already, and only the machine has no room: nobody's GPU would help there."""
    on_node: dict[NodeName, list[MachineRoom]] = {}
    for each in opportunistic:
        on_node.setdefault(each.choice.node, []).append(each.pod.machine)
    return [
        name
        for name, has_gpus in zip(state.names, state.has_gpus(asked.request), strict=True)
        if name in on_node and not has_gpus and state.machine_fits_with(asked, name, _sum(on_node[name]))
    ]


def _sum(rooms: Iterable[MachineRoom]) -> MachineRoom:
    total = NOTHING
    for each in rooms:
        total = MachineRoom(total.cpu_milli + each.cpu_milli, total.memory_mib + each.memory_mib)
    return total
