"""Where a pod may run by everything that is not about GPUs, as far as Carrel knows it.

Thousands of pods have the same demands on nodes. So the result is computed once for each set of demands, and again only
when the labels, the taints, `unschedulable` or the readiness of a node change; until then the same object is returned.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from carrel.cluster.closed_nodes import ClosedNodes
from carrel.cluster.watches import Watches
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.affinity import (
    as_written,
    closed_by,
    demands_of,
    may_run_on,
    state_by,
    takes_the_same_pods,
    untolerated_taints,
)
from carrel.kubernetes.objects.kinds import NodeObject, Pod, Taint

REMEMBERED = 256
"""Sets of demands; more than a few dozen mean that each pod names its own node."""
MOST_NAMED = 3
"""Nodes that one sentence names."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    nodes: tuple[str, ...]
    when_open: tuple[str, ...]
    """The same, and the nodes that only miss because they are closed (`closed_nodes`)."""
    tainted: Mapping[str, Taint]
    """Other nodes that the pod does not exclude → the first taint that it does not tolerate."""
    selected: tuple[str, ...] = ()
    """All nodes that its node selector and affinity allow, also those that are cordoned or tainted now."""
    everywhere: tuple[str, ...] = ()
    """All nodes."""

    def why_not_elsewhere(self, would_do: Callable[[str], bool]) -> str:
        """Why the pod may not run on the other nodes that would do; empty if there are none."""
        found = {node: taint for node, taint in sorted(self.tainted.items()) if would_do(node)}
        states = sorted({state_by(taint) for taint in found.values()} - {""})
        said = [
            _in_state(state, {n: taint for n, taint in found.items() if state_by(taint) == state}) for state in states
        ]
        taints = [as_written(taint) for taint in found.values() if not state_by(taint)]
        if taints:
            have = "nodes have" if len(taints) > 1 else "node has"
            said.append(
                f"{len(taints)} {have} a taint that the pod does not tolerate: {', '.join(sorted(set(taints)))}"
            )
        return "; ".join(said)


def _in_state(state: str, nodes: Mapping[str, Taint]) -> str:
    names, more = list(nodes)[:MOST_NAMED], len(nodes) - MOST_NAMED
    if len(nodes) == 1:
        return f"node {names[0]} is {closed_by(nodes[names[0]], names[0])}"
    return f"{len(nodes)} nodes are {state}: {', '.join(names)}" + (f" and {more} more" if more > 0 else "")


NOWHERE = Eligibility((), (), {})


class EligibleNodes:
    def __init__(self, watches: Watches, closed_nodes: ClosedNodes, isolation: Isolation) -> None:
        self._watches = watches
        self._closed_nodes = closed_nodes
        self._isolation = isolation
        self._known: dict[Hashable, Eligibility] = {}

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if not takes_the_same_pods(old, new):
            self._known.clear()

    def nodes_for(self, pod: Pod, *, when_open: bool = False) -> tuple[str, ...]:
        """Where the pod may run, get its ResourceClaims, and use those that it has. `when_open`: if no node were
        closed. The same object for equal demands."""
        eligible = self.of(pod)
        nodes = eligible.when_open if when_open else eligible.nodes
        return self._isolation.ask("eligible", pod, lambda pod: self._watches.holders.nodes_for(pod, nodes), ())

    def of(self, pod: Pod) -> Eligibility:
        """Nowhere, if its demands on nodes cannot be understood: kube-scheduler understands them neither."""
        return self._isolation.ask("eligible", pod, self._look, NOWHERE)

    def _look(self, pod: Pod) -> Eligibility:
        demands = demands_of(pod)
        if (known := self._known.get(demands)) is not None:
            return known
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        everywhere = self._watches.nodes.store.snapshot()
        taints = {node.metadata.name: untolerated_taints(pod, node) for node in everywhere if may_run_on(pod, node)}
        nodes = tuple(name for name, found in taints.items() if not found)
        when_open = tuple(name for name, found in taints.items() if not any(map(self._closed_nodes.is_usual, found)))
        self._known[demands] = found = Eligibility(
            nodes,
            when_open if len(when_open) > len(nodes) else nodes,
            {name: found[0] for name, found in taints.items() if found},
            tuple(taints),
            tuple(node.metadata.name for node in everywhere),
        )
        return found
