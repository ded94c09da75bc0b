"""The booked pods that wait and that GPUs would help: for these, opportunistic pods leave room and lose GPUs.

What nobody can use now is lent. So these are left out:

    members of a gang that is not complete, or cannot be planned, as long as none of its members runs
    pods that kube-scheduler did not place although GPUs were free for them (`dialects.lent_gpus`)
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.gangs.gang_members import GangMemberLookup
from carrel.cluster.watches import Watches, may_name_gang
from carrel.dialects.lent_gpus import is_lent
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.placement import WaitingPod
from carrel.ledger.requests import Gang


class WaitingBooked:
    def __init__(
        self, covered_pods: CoveredPods, watches: Watches, members_of: GangMemberLookup, now: Callable[[], datetime]
    ) -> None:
        self._covered_pods = covered_pods
        self._pods = watches.pods.store
        self._members_of = members_of
        self._now = now
        self._complete: dict[Gang, bool] = {}  # to look at a large gang with every filter would take long

    def __call__(self) -> Sequence[WaitingPod]:
        """The oldest first."""
        now = self._now()
        return tuple(each for each in self._covered_pods.booked_waiting() if self._could_run(each, now))

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if any(pod is not None and may_name_gang(pod) for pod in (old, new)):
            self.on_gangs()

    def on_gangs(self) -> None:
        """Members of gangs have changed, or what is said of gangs elsewhere."""
        self._complete.clear()

    def _could_run(self, waiting: WaitingPod, now: datetime) -> bool:
        pod, gang = self._pods.by_uid(waiting.holder.uid), waiting.request.gang
        return (pod is None or not is_lent(pod, now)) and (gang is None or self._is_complete(gang))

    def _is_complete(self, gang: Gang) -> bool:
        if gang not in self._complete:
            members = self._members_of(gang)
            as_read = [request.gang for _, request in members.waiting]  # ours may be older
            can_be_planned = not any(each is not None and each.unplanned for each in as_read)
            self._complete[gang] = members.bound > 0 or (can_be_planned and len(as_read) >= gang.size)
        return self._complete[gang]
