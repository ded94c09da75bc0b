"""Whose the GPUs are that pods still hold which are gone from the API server.

A pod that was deleted by force holds its GPUs until its node confirms that it has ended (`leases.confirmed_ends`).
Until then they count as its person's: otherwise who deletes by force could hold any number of GPUs. A pod that had
finished is not remembered: its GPUs are free within seconds. What was deleted while this process did not run is not
known to it, and counts for nobody.
"""

from collections.abc import Callable, Collection, Iterable

from carrel.dialects.tier import counts_as
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.pod_progress import FINISHED


class GoneHolders:
    def __init__(self, gpus_of: Callable[[str], Collection[str]]) -> None:
        """`gpus_of`: the GPUs that the pod of that uid holds."""
        self._gpus_of = gpus_of
        self._pods: dict[str, Pod] = {}  # by uid, as they were last seen

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._pods.pop(new.metadata.uid, None)  # a watch that began again had missed it
        elif old is not None and old.status.phase not in FINISHED and self._gpus_of(old.metadata.uid):
            self._pods = {uid: pod for uid, pod in self._pods.items() if self._gpus_of(uid)}
            self._pods[old.metadata.uid] = old

    def counted_as(self, person: str) -> Iterable[Pod]:
        """The pods of a person, or of a namespace that counts as one. Some may hold nothing any more."""
        return [pod for pod in self._pods.values() if counts_as(pod) == person]

    def get(self, uid: str) -> Pod | None:
        return self._pods.get(uid)
