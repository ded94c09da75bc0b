"""Where the members of a gang may go in a cluster of which kube-scheduler shows only a part for each pod.

It looks at nodes until it has found enough for a pod (`percentageOfNodesToScore`), and for the next pod it goes on from
there. So a node that is missing in a question may be one where the pod may run. Nobody says so in the question: what
counts is the number of nodes.
"""

from collections.abc import Iterable, Mapping

from carrel.cluster.state import ClusterState
from carrel.ledger.machines import ENOUGH, MachineRoom, Machines
from carrel.scheduling.machine_room import machine_of

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

    def reach(self, uids: Iterable[str], asked: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Where these pods may go, as far as Carrel knows: nodes whose machine has room, and those that they were
        `asked` about lately. Members with equal answers get the same object."""
        found: dict[str, tuple[str, ...]] = {}
        eligible: dict[str, tuple[str, ...]] = {}  # keeps them alive, so that no other has the `id` of one of them
        with_room: dict[tuple[int, MachineRoom], tuple[str, ...]] = {}
        joined: dict[tuple[int, int], tuple[str, ...]] = {}
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

    def _with_room(self, nodes: frozenset[str], machine: MachineRoom) -> tuple[str, ...]:
        free, rooms = self._machines.free, self._state.ledger.rooms
        return tuple(name for name in rooms if name in nodes and machine.fits_in(free.get(name, ENOUGH)))

    def _joined(self, nodes: tuple[str, ...], asked: tuple[str, ...]) -> tuple[str, ...]:
        missing = frozenset(asked).difference(nodes)
        if not missing:
            return nodes  # mostly, and so one object for all
        either = missing.union(nodes)
        return tuple(name for name in self._state.ledger.rooms if name in either)
