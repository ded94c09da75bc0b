"""From whom a booked pod of a run gets its GPUs if none are free: `ledger.victims` decides, as in the product.

The CPU and memory of the pods that lose their GPUs count: a node will do if it has enough once they are gone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from carrel.ledger.machines import NOTHING, MachineRoom
from carrel.ledger.placement import WaitingPod
from carrel.ledger.victim_prices import OpportunisticPod, Opportunists
from carrel.ledger.victims import Revocation, revoke
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.policies import Choice
from carrel.simulation.workload import SimulatedPod


@dataclass(frozen=True, slots=True)
class RunningPod:
    pod: SimulatedPod
    choice: Choice
    as_victim: OpportunisticPod


def revoke_in_run(
    state: ClusterInRun,
    waiting: WaitingPod,
    asked: SimulatedPod,
    opportunistic: Mapping[str, RunningPod],
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


def _nodes(state: ClusterInRun, asked: SimulatedPod, opportunistic: Iterable[RunningPod]) -> list[str]:
    """Those with enough CPU and memory, were all opportunistic pods gone. Not where the GPUs are free already, and only
    the machine has no room: nobody's GPU would help there."""
    on_node: dict[str, list[MachineRoom]] = {}
    for each in opportunistic:
        on_node.setdefault(each.choice.node, []).append(each.pod.machine)
    return [
        name
        for name, has_gpus in zip(state.names, state.has_gpus(asked.request), strict=True)
        if not has_gpus and state.machine_fits_with(asked, name, _sum(on_node.get(name, ())))
    ]


def _sum(rooms: Iterable[MachineRoom]) -> MachineRoom:
    total = NOTHING
    for each in rooms:
        total = MachineRoom(total.cpu_milli + each.cpu_milli, total.memory_mib + each.memory_mib)
    return total
