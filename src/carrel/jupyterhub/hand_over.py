"""What is seen of a server's pod while Carrel hands it over to CPU. It decides, and does nothing.

A pod that loses its GPU ends, is gone for a moment, and comes back under its own name without a GPU. A hub that looks
in between would drop the server, and nobody would ever stop the successor. So a pod that had a GPU counts as running
for a while after it ended: for long if Carrel had told it to leave, else for a moment, as the announcement may have
been too short to be seen. A pod without a GPU is never handed over.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from carrel.dialects.carrel import BOOKED, HANDED_OVER, LEAVE_BY, TIER

Pod = Mapping[str, Any]

UNANNOUNCED = timedelta(seconds=30)
"""How long the successor of a pod is awaited that was not seen to be told to leave."""
NOTEBOOK = "notebook"
"""What KubeSpawner calls the container of the server."""


class SeenPod(msgspec.Struct, frozen=True):
    """What is remembered of a server's pod from one look to the next, also over a restart of the hub."""

    uid: str = ""
    had_gpu: bool = False
    told_to_leave: bool = False
    ended: datetime | None = None
    """When its server was first seen to be gone."""
    moved: bool = True
    """False: it is a successor, and the way to it has not been changed yet."""

    def look(self, pod: Pod | None, now: datetime) -> "SeenPod":
        """What is remembered after the pod was looked at. None: there is no pod."""
        if pod is None:
            return replace(self, ended=self.ended or now)
        notes = annotations_of(pod)
        uid = pod["metadata"]["uid"]
        told = LEAVE_BY in notes
        if is_ending(pod) and uid == self.uid:
            ended = self.ended or now if is_server_over(pod) else None
            return replace(self, told_to_leave=told or self.told_to_leave, ended=ended)
        is_new = bool(self.uid) and uid != self.uid
        return SeenPod(uid, TIER in notes, told, None, moved=self.moved and not is_new)

    def is_awaited(self, pod: Pod | None, now: datetime, limit: timedelta) -> bool:
        """Whether the pod is ending or gone, and its successor may still come. `self` has looked at the pod."""
        if not self.had_gpu or (pod is not None and not is_ending(pod)):
            return False
        return self.ended is None or now - self.ended < (limit if self.told_to_leave else UNANNOUNCED)

    def may_be_succeeded(self, pod: Pod | None) -> bool:
        """Whether Carrel may create a successor although the hub ends the pod now."""
        return self.had_gpu and (pod is None or is_ending(pod) or self.told_to_leave)

    def state(self) -> dict[str, Any]:
        """For the hub's database."""
        state: dict[str, Any] = msgspec.to_builtins(self)
        return state


def seen_in(state: Mapping[str, Any]) -> SeenPod:
    """From the hub's database."""
    return msgspec.convert(state, SeenPod)


def annotations_of(pod: Pod) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def is_ending(pod: Pod) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_server_over(pod: Pod) -> bool:
    """Whether the server in the pod has ended."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any(each["name"] == NOTEBOOK and "terminated" in each.get("state", {}) for each in statuses)


def origin_of(pod: Pod) -> str:
    """The uid of the pod that this one succeeds; empty if none, or if its annotation cannot be read."""
    try:
        mark = json.loads(annotations_of(pod).get(HANDED_OVER, "{}"))
    except ValueError:
        return ""
    return str(mark.get("from", "")) if isinstance(mark, dict) else ""


def waits_for_booked_gpu(pod: Pod | None) -> bool:
    """Whether a booking covers the pod, and it has no node yet: a GPU is being given back for it."""
    if pod is None or is_ending(pod) or pod.get("spec", {}).get("nodeName"):
        return False
    return annotations_of(pod).get(TIER) == BOOKED
