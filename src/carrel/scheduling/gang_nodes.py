"""Where the members of a gang may go: what kube-scheduler asked about them lately, and what Carrel knows besides.

In a large cluster kube-scheduler shows only a part of the nodes for each pod. It looks at nodes until it has found
enough for a pod (`percentageOfNodesToScore`), and for the next pod it goes on from there. So a node that is missing in
a question may be one where the pod may run. Nobody says so in the question: what counts is the number of nodes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from carrel.cluster.state import ClusterState
from carrel.ids import HolderId, NodeName
from carrel.ledger.machines import ENOUGH, MachineRoom, Machines
from carrel.scheduling.machine_room import machine_of


@dataclass(slots=True)
class GangHistory:
    """What kube-scheduler asked about a gang lately, and what its members were told."""

    at: float = 0.0
    """When kube-scheduler asked last."""
    nodes: dict[HolderId, tuple[NodeName, ...]] = field(default_factory=dict)
    """Member → the nodes of its last filter call that have GPUs, in the ledger's order. Equal ones are one object:
    there may be thousands of nodes, and hundreds of members."""
    told: dict[HolderId, NodeName] = field(default_factory=dict)
    """Member → the node that it was told, until it comes to be bound."""
    until: float = 0.0
    """When the time of a plan would have been up that ended because of one member. The next plan has no more: a gang
    of which one or another fails again and again must let others go first some day."""

    def remember(self, uid: HolderId, nodes: tuple[NodeName, ...]) -> None:
        known = {id(each): each for each in self.nodes.values()}.values()
        self.nodes[uid] = next((each for each in known if each == nodes), nodes)

    def forget_others(self, uids: Collection[HolderId]) -> None:
        """Only these members wait now."""
        self.nodes = {uid: nodes for uid, nodes in self.nodes.items() if uid in uids}
        self.told = {uid: node for uid, node in self.told.items() if uid in uids}


ALWAYS_ASKED = 100
"""Of so many nodes kube-scheduler always looks at all: its `minFeasibleNodesToFind`."""


class SampledNodes:
    def __init__(self, state: ClusterState, machines: Machines) -> None:
        self._state = state
        self._machines = machines

    @property
    def are_possible(self) -> bool:
        """Whether kube-scheduler may ask about a part of the nodes."""
        return len(self._state.nodes.store) > ALWAYS_ASKED

    def reach(
        self, uids: Iterable[HolderId], asked: Mapping[HolderId, tuple[NodeName, ...]]
    ) -> dict[HolderId, tuple[NodeName, ...]]:
        """Where these pods may go, as far as Carrel knows: nodes whose machine has room, and those that they were
        `asked` about lately. Members with equal answers get the same object."""
        found: dict[HolderId, tuple[NodeName, ...]] = {}
        eligible: dict[
            HolderId, tuple[NodeName, ...]
        ] = {}  # keeps them alive, so that no other has the `id` of one of them
        with_room: dict[tuple[int, MachineRoom], tuple[NodeName, ...]] = {}
        joined: dict[tuple[int, int], tuple[NodeName, ...]] = {}
        for uid in uids:
            if (pod := self._state.pods.store.by_uid(uid)) is None:
                continue
            nodes = eligible[uid] = self._state.eligible_nodes.nodes_for(pod)
            kind = (id(nodes), machine_of(pod))
            if kind not in with_room:
                with_room[kind] = self._with_room(frozenset(nodes), kind[1])
            last = asked.get(uid, ())
            both = (id(with_room[kind]), id(last))
            if both not in joined:
                joined[both] = self._joined(with_room[kind], last)
            found[uid] = joined[both]
        return found

    def _with_room(self, nodes: frozenset[NodeName], machine: MachineRoom) -> tuple[NodeName, ...]:
        free, (cpu, memory) = self._machines.free, machine
        rooms = [(name, free.get(name, ENOUGH)) for name in self._state.ledger.rooms if name in nodes]
        return tuple(name for name, room in rooms if cpu <= room.cpu_milli and memory <= room.memory_mib)

    def _joined(self, nodes: tuple[NodeName, ...], asked: tuple[NodeName, ...]) -> tuple[NodeName, ...]:
        missing = frozenset(asked).difference(nodes)
        if not missing:
            return nodes  # mostly, and so one object for all
        either = missing.union(nodes)
        return tuple(name for name in self._state.ledger.rooms if name in either)
