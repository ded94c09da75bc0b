"""What an opportunistic pod does when no GPU is free for it: it runs on CPU, or waits.

The annotation `carrel.dev/when-full` of its Namespace decides, else the setting. By default a notebook of a hub, or a
pod that carries MAIA's mark, runs on CPU, as with MAIA: a notebook without a GPU is better than none. All other pods
wait. A new pod carries MAIA's mark if it comes with `terminate-at`, which MAIA's webhook writes.

The webhook asks about pods that are created, the controller about pods that wait: on those, MAIA's mark cannot be told
from Carrel's own `terminate-at`, and does not count.
"""

from enum import Enum

from carrel.dialects.carrel import TIER, WHEN_FULL
from carrel.dialects.jupyter import is_of_a_hub
from carrel.dialects.maia import TERMINATE_AT
from carrel.kubernetes.objects.kinds import Namespace, Pod


class WhenFull(Enum):
    CPU = "cpu"
    WAIT = "wait"
    DEFAULT = "default"
    """On CPU if a hub made it or it carries MAIA's mark; else it waits."""


def when_full(pod: Pod, namespace_says: str, setting: WhenFull) -> WhenFull:
    """CPU or WAIT. A word on the Namespace that cannot be read does not count."""
    says = setting if is_unreadable(namespace_says) or not namespace_says else WhenFull(namespace_says)
    if says is not WhenFull.DEFAULT:
        return says
    return WhenFull.CPU if is_of_a_hub(pod) or _has_mark_of_maia(pod) else WhenFull.WAIT


def said_by(namespace: Namespace | None) -> str:
    return namespace.metadata.annotations.get(WHEN_FULL, "") if namespace is not None else ""


def is_unreadable(namespace_says: str) -> bool:
    return namespace_says not in ("", WhenFull.CPU.value, WhenFull.WAIT.value)


def how_to_say_it(namespace: str, said: str) -> str:
    """To whoever creates a pod in a Namespace whose annotation cannot be read."""
    return f"namespace {namespace} says {WHEN_FULL}: {said!r}, which is neither cpu nor wait; it does not count"


def _has_mark_of_maia(pod: Pod) -> bool:
    """Carrel writes `terminate-at` too, but never without the tier: in a second review, it is not MAIA's."""
    return TERMINATE_AT in pod.metadata.annotations and TIER not in pod.metadata.annotations
