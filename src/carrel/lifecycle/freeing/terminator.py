"""Ends GPU pods on request: MAIA's pod terminator.

Only pods whose booking is over, and pods without a booking, whoever placed them: MAIA's pods also come from other
schedulers. The request is written down as a hand-over, and the leader carries it out. So any replica may be called, and
a second call for the same pod changes nothing. As with MAIA, the caller is answered when the pod is being deleted.
"""

import asyncio
from random import Random

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.hand_over_record import Why, pod_of
from carrel.dialects.interface import PodRequest
from carrel.dialects.maia import PodToEnd
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.freeing.expiry import Expiry
from carrel.lifecycle.handing_over.hand_over import HandOverOrder, HandOvers

ANSWER_WITHIN_S = 5.0
"""kube-apiserver gives MAIA's webhook ten seconds in all."""
POLL_S = 0.05
"""How often the cache is looked at."""


class Terminator:
    def __init__(self, state: ClusterState, expiry: Expiry, hand_overs: HandOvers, answer_within_s: float) -> None:
        """`answer_within_s`: how long a caller waits at most for the leader."""
        self._state = state
        self._expiry = expiry
        self._hand_overs = hand_overs
        self._answer_within_s = answer_within_s
        self._rng = Random()  # noqa: S311 - not a secret

    def terminable_pods(self) -> list[Pod]:
        """Pods whose booking is over, and pods that hold a GPU without a booking."""
        expired = {pod.metadata.uid: pod for pod in self._expiry.expired()}
        low = self._state.isolation.found("terminator", self._state.pods.store, self._if_low)
        return [*expired.values(), *low]

    def _if_low(self, pod: Pod) -> Pod | None:
        is_low = self._state.pod_facts.may_lose_gpus(pod) and not is_ending(pod)
        return pod if is_low and self._has_gpus(pod) else None

    def _has_gpus(self, pod: Pod) -> bool:
        """Whether it holds GPUs by a Lease, or runs and asks for some."""
        runs_with_gpu = bool(pod.spec.node_name) and isinstance(self._state.pod_facts.asked(pod), PodRequest)
        return runs_with_gpu or bool(self._state.pod_facts.shares_of(pod))

    async def terminate_one(self) -> Pod | None:
        """Ends one of them that holds a GPU, chosen at random. None: there is none.

        Raises `ClusterError` if the API server refuses a write.
        """
        begun = set(map(pod_of, await self._hand_overs.record_names()))
        candidates = [pod for pod in self.terminable_pods() if pod.metadata.uid not in begun]
        ask = self._state.isolation.ask
        candidates = [pod for pod in candidates if ask("terminator", pod, self._has_gpus, False)]
        while candidates:
            pod = candidates.pop(self._rng.randrange(len(candidates)))
            if await self._end(pod):
                return pod
        return None

    async def terminate(self, which: PodToEnd) -> Pod | Refusal:
        title = f"{which.namespace}/{which.name}"
        pod = self._state.pods.store.get(which.name, which.namespace)
        if pod is None:
            return Refusal(f"there is no pod {title}")
        if pod.metadata.uid not in {each.metadata.uid for each in self.terminable_pods()}:
            return Refusal(f"pod {title} may stay: its booking is not over, or it has no GPU")
        return pod if await self._end(pod) else Refusal(f"pod {title} has just changed; try again")

    async def _end(self, pod: Pod) -> bool:
        why = Why.REVOKED if self._state.pod_facts.may_lose_gpus(pod) else Why.EXPIRED
        if not await self._hand_overs.begin(pod, HandOverOrder(why, self._state.options.now())):
            return False
        await self._wait_ending(pod)
        return True

    async def _wait_ending(self, pod: Pod) -> None:
        """Until it is being deleted; not for ever. What was written down is carried out in any case."""
        tries = int(self._answer_within_s / POLL_S)
        for _ in range(tries):
            now = self._state.pods.store.get(pod.metadata.name, pod.metadata.namespace)
            if now is None or now.metadata.uid != pod.metadata.uid or is_ending(now):
                return
            await asyncio.sleep(POLL_S)
