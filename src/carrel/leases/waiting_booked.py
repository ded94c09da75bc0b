"""The booked pods that wait and that GPUs would help: for these, opportunistic pods leave room and lose GPUs.

What nobody can use now is lent. So these are left out:

    members of a gang that is not complete, or cannot be planned, as long as none of its members runs
    pods that kube-scheduler did not place although GPUs were free for them (`dialects.lent_gpus`)
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from carrel.dialects.carrel import GPUS_LENT
from carrel.dialects.lent_gpus import is_lent
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.reflector import Reflector
from carrel.leases.covered_pods import CoveredPods
from carrel.leases.gang_sizes import may_name_gang
from carrel.ledger.gangs import GangMembers
from carrel.ledger.placement import WaitingPod
from carrel.ledger.requests import Gang


class WaitingBooked:
    def __init__(
        self,
        covered_pods: CoveredPods,
        pods: Reflector[Pod],
        members_of: Callable[[Gang], GangMembers],
        now: Callable[[], datetime],
    ) -> None:
        self._covered_pods = covered_pods
        self._pod_by_uid = pods.store.by_uid
        pods.on_change(self._on_pod)
        self._members_of = members_of
        self._now = now
        # Every filter asks. A look at 1,000 pods that wait takes half a millisecond, and at a large gang still more.
        self._known: tuple[Sequence[WaitingPod], frozenset[str]] = ((), frozenset())  # who waits; whom to look at
        self._complete: dict[Gang, bool] = {}

    def __call__(self) -> Sequence[WaitingPod]:
        """The oldest first."""
        waiting = self._covered_pods.booked_waiting()
        if waiting is not self._known[0]:
            self._known = (waiting, frozenset(each.holder.uid for each in waiting if self._is_to_look_at(each)))
        _, looked_at = self._known
        if not looked_at:
            return waiting  # nearly always
        now = self._now()
        return tuple(each for each in waiting if each.holder.uid not in looked_at or self._could_run(each, now))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pods = [pod for pod in (old, new) if pod is not None]
        if any(GPUS_LENT in pod.metadata.annotations for pod in pods):
            self._known = ((), frozenset())
        if any(map(may_name_gang, pods)):
            self.on_gangs()

    def on_gangs(self) -> None:
        """Members of gangs have changed, or what is said of gangs elsewhere."""
        self._complete.clear()

    def _is_to_look_at(self, waiting: WaitingPod) -> bool:
        pod = self._pod_by_uid(waiting.holder.uid)
        return waiting.request.gang is not None or (pod is not None and GPUS_LENT in pod.metadata.annotations)

    def _could_run(self, waiting: WaitingPod, now: datetime) -> bool:
        pod, gang = self._pod_by_uid(waiting.holder.uid), waiting.request.gang
        return (pod is None or not is_lent(pod, now)) and (gang is None or self._is_complete(gang))

    def _is_complete(self, gang: Gang) -> bool:
        if gang not in self._complete:
            members = self._members_of(gang)
            as_read = [request.gang for _, request in members.waiting]  # ours may be older
            can_be_planned = not any(each is not None and each.unplanned for each in as_read)
            self._complete[gang] = members.bound > 0 or (can_be_planned and len(as_read) >= gang.size)
        return self._complete[gang]
