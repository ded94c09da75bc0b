"""Whether kube-scheduler should choose among several nodes, because a preference that only it weighs may decide.

Where `filter` names a single node, kube-scheduler skips its own scores. So it gets all nodes that have room if the pod
states a preference among nodes (affinity, spread), or if some of the nodes would rather not have pods (taints).
"""

from collections.abc import Sequence

from carrel.kubernetes.objects.kinds import NodeObject, Pod

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

    def __init__(self) -> None:
        self._reluctant: set[str] = set()

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if old is not None:
            self._reluctant.discard(old.metadata.name)
        if new is not None and any(taint.effect == AS_PREFERENCE for taint in new.spec.taints):
            self._reluctant.add(new.metadata.name)

    def matter(self, pod: Pod, nodes: Sequence[str]) -> bool:
        # There are thousands of nodes, and mostly none of them is tainted.
        return prefers_nodes(pod) or bool(self._reluctant and not self._reluctant.isdisjoint(nodes))
