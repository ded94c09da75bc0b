"""Hands pods over to CPU that have waited long enough for a GPU, where a full cluster means CPU.

The webhook looks whether a GPU is free when a pod is created. If four notebooks are created at once and two GPUs are
free, all four are told that one is free, and two of them wait. Their hub gives up after some minutes. So a pod that the
webhook would have moved to CPU, had nothing been free, is moved there after a while, by a hand-over (`hand_over`): it
is created again under its name, without a GPU.

A pod for which there is room now is left to the scheduler:
if one GPU becomes free for four pods, one of them gets it, and the three others follow in the next rounds. Before
anything is written, Leases and bookings are read again. A pod that is bound at this moment stays: the hand-over is
called off if the pod has a node, and deletes it only in the version that was read.

Left alone: pods with a controller. Nobody gives up on them, and a Job counts a deleted pod as failed.
"""

import logging
from datetime import datetime

from carrel.cluster.pod_progress import created_at, holder_of, is_ending
from carrel.cluster.state import ClusterState
from carrel.cluster.waiting.starts_soon import starts_soon
from carrel.dialects.booking_objects import namespace_named
from carrel.dialects.carrel import BOOKING
from carrel.dialects.hand_over_record import Why
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai import POD_GROUP
from carrel.dialects.notice import wants_no_successor
from carrel.dialects.options import WhenFull
from carrel.dialects.tier import person_of, when_full
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.lifecycle.handing_over.hand_over import HandOverOrder, HandOvers
from carrel.lifecycle.tier_options import TierOptions

log = logging.getLogger(__name__)


class CpuAfterWait:
    def __init__(self, state: ClusterState, hand_overs: HandOvers, options: TierOptions) -> None:
        self._state = state
        self._hand_overs = hand_overs
        self._options = options
        self._since: dict[str, datetime] = {}
        """uid → since when it waits and would go on without a GPU."""

    async def begin_due(self) -> list[str]:
        """The names of the hand-overs that were begun. Raises `ClusterError` if Leases and bookings cannot be read."""
        if not self._options.wait_before_cpu or not self._due() or not await self._state.reread():
            return []
        return [name for name in await self._state.isolation.each("wait", self._due(), self._begin) if name]

    async def _begin(self, pod: Pod) -> str:
        now = self._state.options.now()
        name = await self._hand_overs.begin(pod, HandOverOrder(Why.FULL, due=now))
        if name:
            log.info("waited_too_long pod=%s uid=%s", holder_of(pod), pod.metadata.uid)
            self._since[pod.metadata.uid] = now  # if it is called off, the time begins again
        return name

    def _due(self) -> list[Pod]:
        """The pods that have waited long enough, and for which there is no room now; the oldest first."""
        now, pods = self._state.options.now(), filter(self._waits, self._state.pods.store)
        waiting = {pod.metadata.uid: pod for pod in pods}
        self._since = {uid: since for uid, since in self._since.items() if uid in waiting}
        due = self._state.isolation.found("wait", waiting.values(), lambda pod: self._if_due(pod, now))
        return sorted(due, key=lambda pod: (created_at(pod), pod.metadata.uid))

    def _waits(self, pod: Pod) -> bool:
        is_ours = pod.spec.scheduler_name in self._options.schedulers
        return is_ours and not pod.spec.node_name and not is_ending(pod)

    def _if_due(self, pod: Pod, now: datetime) -> Pod | None:
        uid = pod.metadata.uid
        if self._waits_on(pod):
            self._since[uid] = now  # its time begins when that is over
            return None
        has_waited = now - self._since.setdefault(uid, created_at(pod)) >= self._options.wait_before_cpu
        return pod if has_waited and self._has_no_room(pod) else None

    def _has_no_room(self, pod: Pod) -> bool:
        """While no agent has reported a GPU, nobody can say that all are taken."""
        return bool(self._state.ledger.rooms) and self._state.waiting_reason.why(pod) is not None

    def _waits_on(self, pod: Pod) -> bool:
        """Whether it goes on waiting, however long that takes."""
        state, notes, namespace = self._state, pod.metadata.annotations, pod.metadata.namespace
        asked = state.pod_facts.asked(pod)
        if not isinstance(asked, PodRequest):
            return True  # not known yet, as of a pod whose GpuClaim does not exist yet
        says = when_full(pod, state.namespaces.store.get(namespace), self._options.when_full)
        planned = state.covered_pods.planned_for(person_of(pod), namespace_named(namespace)) if person_of(pod) else []
        return (
            says is not WhenFull.CPU
            or not state.pod_facts.may_lose_gpus(pod)
            or asked.request.gang is not None
            or POD_GROUP in notes
            or BOOKING in notes  # it is made for a booking
            or starts_soon(planned, asked.request, state.options.now()) is not None
            or bool(gates_of(pod))
            or any(owner.controller for owner in pod.metadata.owner_references)
            or bool(state.ledger.shares_of(pod.metadata.uid))  # it is being bound
            or wants_no_successor(notes)  # nothing would run in its place
        )
