"""Where a pod may run by everything that is not about GPUs, as far as Carrel knows it.

Thousands of pods have the same demands on nodes. So the result is computed once for each set of demands, and again only
when the labels, the taints or `unschedulable` of a node change; until then the same object is returned.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from carrel.kubernetes.objects.affinity import demands_of, may_run_on, selects, untolerated_taint
from carrel.kubernetes.objects.kinds import NodeObject, Pod

REMEMBERED = 256
"""Sets of demands; more than a few dozen mean that each pod names its own node."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    nodes: tuple[str, ...]
    tainted: Mapping[str, str]
    """Other nodes that the pod does not exclude → the taint that it does not tolerate."""
    selected: tuple[str, ...] = ()
    """All nodes that its node selector and affinity allow, also those that are cordoned or tainted now."""
    everywhere: tuple[str, ...] = ()
    """All nodes."""

    def why_not_elsewhere(self, has_cards: Callable[[str], bool]) -> str:
        """Empty if no node with GPUs is tainted."""
        taints = [taint for node, taint in self.tainted.items() if has_cards(node)]
        if not taints:
            return ""
        have = "nodes have" if len(taints) > 1 else "node has"
        return f"{len(taints)} {have} a taint that the pod does not tolerate: {', '.join(sorted(set(taints)))}"


NOWHERE = Eligibility((), {})


class EligibleNodes:
    def __init__(self, nodes: Callable[[], Iterable[NodeObject]]) -> None:
        self._nodes = nodes
        self._known: dict[Hashable, Eligibility] = {}

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels or old.spec != new.spec:
            self._known.clear()

    def of(self, pod: Pod) -> Eligibility:
        demands = demands_of(pod)
        if (known := self._known.get(demands)) is not None:
            return known
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[demands] = found = self._look(pod)
        return found

    def _look(self, pod: Pod) -> Eligibility:
        everywhere = tuple(self._nodes())
        selected = [node for node in everywhere if selects(pod, node)]
        taints = {node.metadata.name: untolerated_taint(pod, node) for node in selected if may_run_on(pod, node)}
        nodes = tuple(name for name, taint in taints.items() if not taint)
        tainted = {name: taint for name, taint in taints.items() if taint}
        return Eligibility(nodes, tainted, _names(selected), _names(everywhere))


def _names(nodes: Iterable[NodeObject]) -> tuple[str, ...]:
    return tuple(node.metadata.name for node in nodes)
