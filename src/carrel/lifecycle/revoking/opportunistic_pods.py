"""Which pods hold GPUs without a booking, and which of these should have given them back.

This is asked about every pod with a GPU, whenever a booked pod needs one; there may be tens of thousands. So what is
written on a pod is read once, and kept as long as the pod is the same object. What may change without the pod is asked
each time: whether a booking covers it, whether its namespace is exempt, whether a budget keeps it. Pods that are ending
or gone, and ResourceClaims with the pods that use them, are looked at each time.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial

from carrel.cluster.pod_progress import bound_at, created_at, is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.tier import counts_as
from carrel.ids import NO_PERSON, HolderId
from carrel.kubernetes.isolation import title
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.victims import LONG_AGO, NEVER, OpportunisticPod, Opportunists
from carrel.lifecycle.freeing.slow_endings import KUBELET_TIME, LAST_GRACE, is_overdue
from carrel.lifecycle.handing_over.hand_over import HandOvers
from carrel.lifecycle.tier_options import TierOptions
from carrel.parsing import Malformed
from carrel.parsing.time import instant

STEP = "revocation_choice"


class OpportunisticPods:
    def __init__(self, state: ClusterState, hand_overs: HandOvers, options: TierOptions) -> None:
        self._state = state
        self._ledger = state.ledger
        self._pods = state.pods.store.uids
        self._now = state.options.now
        self._hand_overs = hand_overs
        self._options = options
        # By uid: the pods that were read, and as what each may be a victim; None: what is written on it protects it.
        self._known: dict[HolderId, tuple[Pod, OpportunisticPod | None]] = {}
        self._gone_since: dict[HolderId, datetime] = {}  # uid → since when the pod is gone, and its GPU not free

    def forget_changed(self) -> None:
        """Drops what was read of pods that have changed or are gone; to be called also while nobody asks, because the
        pods themselves are kept with it."""
        pod_now = self._pods.get
        self._known = {uid: seen for uid, seen in self._known.items() if pod_now(uid) is seen[0]}

    def read(self) -> Opportunists:
        holders, held_up = self._ledger.holders(), self._hand_overs.budgets.kept()
        users = {pod.metadata.uid for uid in holders - self._pods.keys() for pod in self._state.holders.pods_of(uid)}
        self.forget_changed()
        for uid in self._known.keys() - (holders - held_up - users):
            del self._known[uid]
        others = sorted(holders - self._known.keys())
        stuck, victims = self._stuck_among(others, held_up), dict[HolderId, OpportunisticPod]()
        for uid in others:
            if uid not in stuck:
                read = partial(self._read, is_apart=uid in held_up or uid in users)
                if (victim := self._state.isolation.ask(STEP, uid, read, None, self._title_of)) is not None:
                    victims[uid] = victim
        covered = self._state.covered_pods.holders()
        namespaces = {pod.metadata.namespace for pod, _ in self._known.values()}
        exempt = set(filter(self._state.watches.is_exempt, namespaces))
        for uid, (pod, victim) in self._known.items():
            if victim is not None and uid not in covered and pod.metadata.namespace not in exempt:
                victims[uid] = victim
        return Opportunists(victims, stuck)

    def _read(self, uid: HolderId, is_apart: bool) -> OpportunisticPod | None:
        """Reads what is written on a pod, to be known from now on. Of others, the victim, if it is one now."""
        pod, now = self._pods.get(uid), self._now()
        # If its times are in the future, by a wrong clock, what is read of it changes without the pod.
        if pod is not None and not is_apart and not is_ending(pod) and max(_times(pod, now)) < now:
            is_opportunistic = self._state.pod_facts.is_written_opportunistic(pod)
            self._known[uid] = pod, self._as_victim(uid, [pod]) if is_opportunistic else None
            return None
        if not self._state.pod_facts.holder_may_lose_gpus(uid):
            return None
        return self._as_victim(uid, [pod for pod in self._state.holders.pods_of(uid) if not is_ending(pod)])

    def _as_victim(self, uid: HolderId, pods: Sequence[Pod]) -> OpportunisticPod:
        """With its pods that are not ending. Of several, the longest work counts, and the youngest."""
        now, minimum = self._now(), self._options.minimum_time
        times = [_times(pod, now) for pod in pods]
        starts, since = [start for start, _ in times if start > LONG_AGO], max(since for _, since in times)
        young_until = since + minimum if minimum < NEVER - since else NEVER
        if since >= now or not minimum:
            young_until = NEVER if max(timedelta(), now - since) < minimum else LONG_AGO
        return OpportunisticPod(uid, counts_as(pods[0]), min(starts, default=None), young_until)

    def _stuck_among(self, uids: Iterable[HolderId], held_up: set[HolderId]) -> dict[HolderId, OpportunisticPod]:
        """The pods that should have given their GPUs back: a booked pod must not wait any longer for them."""
        now, longest, found, gone = self._now(), self._options.longest_grace, {}, {}
        for uid in uids:
            pod = self._state.holders.pod_of(uid)
            if pod is None:
                if any(share.holder.is_claim for share in self._ledger.shares_of(uid).values()):
                    continue  # it is no pod, so nobody can find it gone by looking for one
                gone[uid] = self._gone_since.get(uid, now)
                if now < gone[uid] + LAST_GRACE + KUBELET_TIME:
                    continue
                pod = self._state.gone_holders.get(uid)
            elif is_ending(pod):
                if not self._state.isolation.ask(STEP, pod, lambda pod: is_overdue(pod, now, longest), False):
                    continue
            elif pod.metadata.uid not in held_up:
                continue
            counts = pod is not None and self._state.pod_facts.may_lose_gpus(pod)
            found[uid] = OpportunisticPod(uid, counts_as(pod) if pod is not None and counts else NO_PERSON)
        self._gone_since = gone
        return found

    def _title_of(self, uid: HolderId) -> str:
        pod = self._state.holders.pod_of(uid)
        return title(pod) if pod is not None else uid


def _times(pod: Pod, now: datetime) -> tuple[datetime, datetime]:
    """When the pod started; and since when it has its GPUs: when it started; when it was bound or created, if it has
    not started. `LONG_AGO`: it has not started, or nobody can read when."""
    try:
        started = instant(pod.status.start_time, f"pod {pod.metadata.name}", "status.startTime")
    except Malformed:
        started = LONG_AGO
    has_started = LONG_AGO < started < now
    return started, started if has_started else bound_at(pod) or created_at(pod)
