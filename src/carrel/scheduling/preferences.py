"""Whether kube-scheduler should choose among several nodes, because a preference that only it weighs may decide.

Where `filter` names a single node, kube-scheduler skips its own scores. So it gets all nodes that have room if the pod
states a preference among nodes (affinity, spread), or if some of the nodes with GPUs would rather not have it (taints).
What is given up otherwise is in `decisions/0042` and `decisions/0057`.
"""

from collections.abc import Sequence

from carrel.kubernetes.objects.affinity import tolerates
from carrel.kubernetes.objects.kinds import NodeObject, Pod, Taint
from carrel.ledger.ledger import Ledger

AS_PREFERENCE = "PreferNoSchedule"
ANYWAY = "ScheduleAnyway"


def prefers_nodes(pod: Pod) -> bool:
    """Whether the pod says which nodes it prefers, and would run on others too."""
    affinity = pod.spec.affinity
    return bool(
        affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
        or affinity.pod_affinity.preferred_during_scheduling_ignored_during_execution
        or affinity.pod_anti_affinity.preferred_during_scheduling_ignored_during_execution
        or any(each.when_unsatisfiable == ANYWAY for each in pod.spec.topology_spread_constraints)
    )


class NodePreferences:
    """Follows which nodes are tainted as a preference: mostly none."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reluctant: dict[str, Sequence[Taint]] = {}  # node → its taints that are a preference

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if old is not None:
            self._reluctant.pop(old.metadata.name, None)
        if new is not None and (taints := [each for each in new.spec.taints if each.effect == AS_PREFERENCE]):
            self._reluctant[new.metadata.name] = taints

    def matter(self, pod: Pod, nodes: Sequence[str]) -> bool:
        # There are thousands of nodes, and mostly none of them is tainted: then they need not even be read.
        unwilling = self._unwilling(pod) if self._reluctant else ()
        return prefers_nodes(pod) or bool(unwilling and not unwilling.isdisjoint(nodes))

    def _unwilling(self, pod: Pod) -> set[str]:
        """The nodes with GPUs that would rather not have this pod."""
        tainted = [name for name in self._reluctant if self._ledger.node(name) is not None]
        return {
            name
            for name in tainted
            if not all(tolerates(pod.spec.tolerations, taint) for taint in self._reluctant[name])
        }
