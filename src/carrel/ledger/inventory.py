"""Which GPUs there are, whoever holds them: by it scoring judges what pods ask for.

Most nodes of a cluster have one of a few shapes. So shapes are counted, not GPUs, and a node is looked at again only
when it reports something else.
"""

from collections import Counter

from carrel.ledger.contention import GpuKind
from carrel.ledger.demand import UNKNOWN_SUPPLY, GpuSupply
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import NodeRoom, fit_test, summarise
from carrel.ledger.requests import Request

OTHER_GPUS = 0.1
"""Which part of the GPUs must be others before it is worked out anew which of them are wanted most."""

_Shape = tuple[tuple[str, str, MiB, int, bool], ...]
"""Island, model, memory and bandwidth of each GPU of a node, and whether it is usable."""


class Inventory:
    """The GPUs of the nodes of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.kinds: Counter[GpuKind] = Counter()
        """How many usable GPUs of each kind there were when they were last counted."""
        self._counted_at = 0  # the version of the ledger's inventory
        self._looked_at = -1  # the same
        self._shape_of: dict[str, tuple[Node, _Shape]] = {}
        self._empty: dict[_Shape, NodeRoom] = {}  # the room of such a node that nobody uses

    def has_changed(self) -> bool:
        """Whether it is a different one since it was counted. Then it has been counted again."""
        if self._ledger.inventory_version - self._counted_at <= OTHER_GPUS * len(self._ledger.rooms):
            return False
        self._counted_at, now = self._ledger.inventory_version, self._kinds_now()
        others = (now - self.kinds).total() + (self.kinds - now).total()
        if others <= OTHER_GPUS * self.kinds.total():
            return False
        self.kinds = now
        return True

    def count(self) -> None:
        self.kinds = self._kinds_now()

    def supply(self) -> GpuSupply:
        kinds = self._kinds_now()
        if not kinds:
            return UNKNOWN_SUPPLY
        mean = sum(memory * count for (_, memory), count in kinds.items()) / kinds.total()
        return GpuSupply(mean, max(map(len, self._usable())))

    def could_serve(self, request: Request) -> bool:
        """Whether a node has such GPUs, were it empty and in order. If no node is known: yes. `Machines.could_give` is
        the same for CPU and memory."""
        self._look()
        return not self._empty or any(map(fit_test(request), self._empty.values()))

    def _kinds_now(self) -> Counter[GpuKind]:
        kinds = Counter[GpuKind]()
        for shape, nodes in self._usable().items():
            for _, model, memory, _, is_usable in shape:
                if is_usable:
                    kinds[model, memory] += nodes
        return kinds

    def _usable(self) -> Counter[_Shape]:
        """How many nodes of each shape may take pods."""
        self._look()
        return Counter(shape for node, shape in self._shape_of.values() if not node.out_of_use)

    def _look(self) -> None:
        if self._looked_at == self._ledger.inventory_version:
            return
        self._looked_at = self._ledger.inventory_version
        before, self._shape_of = self._shape_of, {}
        for name in self._ledger.rooms:
            node = self._ledger.node(name)
            assert node is not None, "only nodes have room"
            known = before.get(name)
            self._shape_of[name] = known if known is not None and known[0] is node else (node, _shape(node))
        shapes = {shape: node for node, shape in self._shape_of.values()}
        if shapes.keys() != self._empty.keys():
            self._empty = {shape: summarise((gpu, gpu.memory) for gpu in node.gpus) for shape, node in shapes.items()}


def _shape(node: Node) -> _Shape:
    return tuple((gpu.island, gpu.model, gpu.memory, gpu.bandwidth_gbps, not gpu.unusable) for gpu in node.gpus)
