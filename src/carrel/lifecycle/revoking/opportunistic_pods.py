"""Which pods hold GPUs without a booking, and which of these should have given them back.

This is asked about every pod with a GPU, whenever a booked pod needs one. What is written on a pod is read once, and
kept as long as the pod is the same object. What may change without the pod is asked each time: whether a booking covers
it, whether its namespace is exempt, whether a budget keeps it. Pods that are ending or gone, and ResourceClaims with
the pods that use them, are looked at each time.

There may be tens of thousands. So what is done for each of them is one look-up, and the rest are operations on sets.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from carrel.cluster.pod_progress import bound_at, created_at, is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.tier import counts_as
from carrel.kubernetes.isolation import title
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.victim_prices import LONG_AGO, NEVER, OpportunisticPod, Opportunists
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
        # By uid: the pods that were read, and as what those may be victims that are not protected by what is written on
        # them. The namespaces of the latter.
        self._read: dict[str, Pod] = {}
        self._victims: dict[str, OpportunisticPod] = {}
        self._in_namespace: dict[str, set[str]] = {}
        self._gone_since: dict[str, datetime] = {}  # uid → since when the pod is gone, and its GPU not free

    def forget_changed(self) -> None:
        """Drops what was read of pods that have changed or are gone; to be called also while nobody asks, because the
        pods themselves are kept with it."""
        pod_now = self._pods.get
        changed = [uid for uid, pod in self._read.items() if pod_now(uid) is not pod]
        for uid in changed:
            self._forget(uid)

    def read(self) -> Opportunists:
        holders = self._ledger.holders()
        self.forget_changed()
        apart = self._hand_overs.held_up() | self._users_of_claims(holders - self._pods.keys())
        for uid in (*apart, *(self._read.keys() - holders)):
            self._forget(uid)
        others = sorted(holders - self._read.keys())
        stuck = self._stuck_among(others)
        found = {uid: self._look_at(uid, is_apart=uid in apart) for uid in others if uid not in stuck}
        victims = self._victims.copy()
        for namespace in filter(self._state.watches.is_exempt, self._in_namespace):
            for uid in self._in_namespace[namespace]:
                del victims[uid]
        for uid in self._state.covered_pods.holders() & victims.keys():
            del victims[uid]
        return Opportunists(victims | {uid: pod for uid, pod in found.items() if pod is not None}, stuck)

    def _users_of_claims(self, claims: Iterable[str]) -> set[str]:
        """The uids of the pods that use these, of which some may be pods that are gone."""
        return {pod.metadata.uid for uid in claims for pod in self._state.claim_users.pods_of(uid)}

    def _remember(self, pod: Pod, as_victim: OpportunisticPod | None) -> None:
        uid = pod.metadata.uid
        self._read[uid] = pod
        if as_victim is not None:
            self._victims[uid] = as_victim
            self._in_namespace.setdefault(pod.metadata.namespace, set()).add(uid)

    def _forget(self, uid: str) -> None:
        pod = self._read.pop(uid, None)
        if pod is not None and self._victims.pop(uid, None) is not None:
            there = self._in_namespace[pod.metadata.namespace]
            there.discard(uid)
            if not there:
                del self._in_namespace[pod.metadata.namespace]

    def _look_at(self, uid: str, *, is_apart: bool) -> OpportunisticPod | None:
        """As what it may be a victim. None: it keeps its GPUs, or was read, and is remembered."""
        return self._state.isolation.ask(STEP, uid, lambda uid: self._seen(uid, is_apart), None, self._title_of)

    def _seen(self, uid: str, is_apart: bool) -> OpportunisticPod | None:
        pod = self._pods.get(uid)
        if pod is not None and not is_apart and not is_ending(pod) and _has_begun(pod, self._now()):
            self._remember(
                pod, self._as_victim(uid, [pod]) if self._state.pod_facts.is_written_opportunistic(pod) else None
            )
            return None
        if not self._state.pod_facts.holder_may_lose_gpus(uid):
            return None
        return self._as_victim(uid, [pod for pod in self._state.claim_users.pods_of(uid) if not is_ending(pod)])

    def _as_victim(self, uid: str, pods: Sequence[Pod]) -> OpportunisticPod:
        """With its pods that are not ending. Of several, the longest work counts, and the youngest."""
        now, minimum = self._now(), self._options.minimum_time
        starts = [start for pod in pods if (start := started_at(pod)) is not None]
        since = max(_since(pod, now) for pod in pods)
        young_until = since + minimum if minimum < NEVER - since else NEVER
        is_young = max(timedelta(), now - since) < minimum
        if since >= now or not minimum:
            young_until = NEVER if is_young else LONG_AGO
        return OpportunisticPod(uid, counts_as(pods[0]), min(starts, default=None), young_until)

    # --- who should have given its GPUs back -------------------------------------------------------------------------

    def _stuck_among(self, uids: Iterable[str]) -> dict[str, OpportunisticPod]:
        """The pods on which a booked pod must not wait any longer."""
        now, found, gone = self._now(), {}, {}
        for uid in uids:
            pod = self._state.claim_users.pod_of(uid)
            if pod is None:
                if any(share.holder.is_claim for share in self._ledger.shares_of(uid).values()):
                    continue  # it is no pod, so nobody can find it gone by looking for one
                gone[uid] = self._gone_since.get(uid, now)
                if now >= gone[uid] + LAST_GRACE + KUBELET_TIME:
                    last = self._state.gone_holders.get(uid)
                    found[uid] = OpportunisticPod(uid, self._counts_for(last) if last is not None else "")
            elif self._state.isolation.ask(STEP, pod, self._is_stuck, otherwise=False):
                found[uid] = OpportunisticPod(uid, self._counts_for(pod))
        self._gone_since = gone
        return found

    def _counts_for(self, pod: Pod) -> str:
        return counts_as(pod) if self._state.pod_facts.may_lose_gpus(pod) else ""

    def _is_stuck(self, pod: Pod) -> bool:
        if is_ending(pod):
            return is_overdue(pod, self._now(), self._options.limits)
        return self._hand_overs.is_held_up(pod.metadata.uid)

    def _title_of(self, uid: str) -> str:
        pod = self._state.claim_users.pod_of(uid)
        return title(pod) if pod is not None else uid


def started_at(pod: Pod) -> datetime | None:
    """None: it has not started, or nobody can read when."""
    try:
        return instant(pod.status.start_time, f"pod {pod.metadata.name}", "status.startTime")
    except Malformed:
        return None


def _since(pod: Pod, now: datetime) -> datetime:
    """When it has got its GPUs: when it started; when it was bound or created, if it has not started."""
    started = started_at(pod)
    return started if started is not None and started < now else bound_at(pod) or created_at(pod)


def _has_begun(pod: Pod, now: datetime) -> bool:
    """Not if its times are in the future, by a wrong clock: what is read of it then changes without the pod."""
    started = started_at(pod)
    return (started is None or started < now) and _since(pod, now) < now
