"""Where a pod may run by everything that is not about GPUs, as far as Carrel knows it.

Thousands of pods have the same demands on nodes. So the result is computed once for each set of demands, and again only
when the labels, the taints, `unschedulable` or the readiness of a node change; until then the same object is returned.

A node is closed if it is cordoned, not ready, or tainted in a way that the lab's GPU pods do not usually tolerate.
The GPUs of a closed node count like unhealthy ones, and pods that run there keep theirs. A pod that tolerates the taint
may still get one. Nearly every GPU node has a taint that its pods tolerate, and such a usual taint closes no node:

1. its key is a resource by which pods ask for GPUs, as `nvidia.com/gpu`: Kubernetes can give its toleration to pods
2. Carrel's agents tolerate it. An agent has to run on each GPU node, so whoever installs Carrel lists the usual taints
   (`agent.tolerations` of the chart). Kubernetes itself adds tolerations of a node's state, so these say nothing

What GPU pods tolerate at this moment is not counted: at night there may be none, and no GPU would be lost by that.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from carrel.cluster.watches import Watches
from carrel.dialects.registry import ALL
from carrel.ids import NodeName
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.affinity import (
    OF_KUBERNETES,
    as_written,
    closed_by,
    demands_of,
    excluding_taints,
    may_run_on,
    state_by,
    takes_the_same_pods,
    tolerates,
    untolerated_taints,
)
from carrel.kubernetes.objects.kinds import NodeObject, Pod, Taint, Toleration
from carrel.kubernetes.reflector import Reflector

COMPONENT = "app.kubernetes.io/component"
AGENTS = frozenset({"agent", "agent-report-only"})
"""What the chart writes there on agents."""


class ClosedNodes:
    """Follows what the agents in Carrel's namespace tolerate; while there is none, what the last ones did counts."""

    def __init__(self, pods: Reflector[Pod], nodes: Reflector[NodeObject], namespace: str) -> None:
        self._nodes = nodes
        self._namespace = namespace
        self._by_agent: dict[str, frozenset[_Toleration]] = {}
        self._tolerated: frozenset[_Toleration] = frozenset()
        pods.on_change(self._on_pod)

    def why(self, name: NodeName) -> str:
        """Say why a node is closed: "cordoned (kubectl uncordon n1)". Empty: it is open, or not there."""
        node = self._nodes.store.get(name)
        closing = (taint for taint in excluding_taints(node) if not self.is_usual(taint)) if node is not None else ()
        return next((closed_by(taint, name) for taint in closing), "")

    def is_usual(self, taint: Taint) -> bool:
        """Whether the taint closes no node."""
        if taint.key.startswith(OF_KUBERNETES):
            return False
        return ALL.is_resource(taint.key) or tolerates((Toleration(*each) for each in self._tolerated), taint)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or pod.metadata.namespace != self._namespace or pod.metadata.labels.get(COMPONENT) not in AGENTS:
            return
        self._by_agent.pop(pod.metadata.uid, None)
        if new is not None:
            tolerated = ((each.key, each.operator, each.value, each.effect) for each in new.spec.tolerations)
            self._by_agent[new.metadata.uid] = frozenset(tolerated)
        now = frozenset[_Toleration]().union(*set(self._by_agent.values())) or self._tolerated
        if now != self._tolerated:
            self._tolerated = now
            self._nodes.tell_again()


_Toleration = tuple[str, str, str, str]
"""Key, operator, value and effect."""


REMEMBERED = 256
"""Sets of demands; more than a few dozen mean that each pod names its own node."""
MOST_NAMED = 3
"""Nodes that one sentence names."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    nodes: tuple[NodeName, ...]
    when_open: tuple[NodeName, ...]
    """The same, and the nodes that only miss because they are closed."""
    tainted: Mapping[NodeName, Taint]
    """Other nodes that the pod does not exclude → the first taint that it does not tolerate."""
    selected: tuple[NodeName, ...] = ()
    """All nodes that its node selector and affinity allow, also those that are cordoned or tainted now."""
    everywhere: tuple[NodeName, ...] = ()
    """All nodes."""

    def why_not_elsewhere(self, would_do: Callable[[NodeName], bool]) -> str:
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


def _in_state(state: str, nodes: Mapping[NodeName, Taint]) -> str:
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

    def nodes_for(self, pod: Pod, *, when_open: bool = False) -> tuple[NodeName, ...]:
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
        everywhere = tuple(self._watches.nodes.store)
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
