"""The Scheduler port: what kube-scheduler's questions need answered. `scheduling.scheduler.Scheduling` does."""

from collections.abc import Sequence
from typing import Protocol

from carrel.dialects.registry import Ask
from carrel.kubernetes.objects.shapes import Pod
from carrel.ledger.filtering import Filtered
from carrel.ledger.refusals import Refusal
from carrel.scheduling.extender_calls import Binding


class Scheduler(Protocol):
    def understand(self, pod: Pod) -> Ask | Refusal | None:
        """What the pod asks for; None if it is none of Carrel's business."""

    def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered | Refusal:
        """A refusal: the pod cannot be understood, whatever the node."""

    def rank(self, pod: Pod, nodes: Sequence[str]) -> Sequence[str]:
        """The nodes, best first."""

    async def bind(self, pod: Pod, node: str) -> Refusal | None:
        """None: the pod is bound. Raises `ClusterError` if the API server does not answer."""


class PodFinder(Protocol):
    async def __call__(self, binding: Binding) -> Pod | Refusal:
        """The pod that is to be bound, or why there is none."""
