"""Which nodes are closed: cordoned, not ready, or tainted in a way that the lab's GPU pods do not usually tolerate.

The GPUs of a closed node count like unhealthy ones, and pods that run there keep theirs. A pod that tolerates the taint
may still get one. Nearly every GPU node has a taint that its pods tolerate, and such a usual taint closes no node:

1. its key is a resource by which pods ask for GPUs, as `nvidia.com/gpu`: Kubernetes can give its toleration to pods
2. Carrel's agents tolerate it. An agent has to run on each GPU node, so whoever installs Carrel lists the usual taints
   (`agent.tolerations` of the chart). Kubernetes itself adds tolerations of a node's state, so these say nothing

What GPU pods tolerate at this moment is not counted: at night there may be none, and no GPU would be lost by that.
"""

from carrel.dialects.registry import ALL
from carrel.kubernetes.objects.affinity import OF_KUBERNETES, closed_by, excluding_taints, tolerates
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

    def why(self, name: str) -> str:
        """As people read it: "cordoned (kubectl uncordon n1)". Empty: the node is open, or not there."""
        node = self._nodes.store.get(name)
        closing = (taint for taint in excluding_taints(node) if not self.is_usual(taint)) if node is not None else ()
        return next((closed_by(taint, name) for taint in closing), "")

    def is_usual(self, taint: Taint) -> bool:
        """Whether the taint closes no node."""
        if taint.key.startswith(OF_KUBERNETES):
            return False
        return taint.key in ALL.resources or tolerates((Toleration(*each) for each in self._tolerated), taint)

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
