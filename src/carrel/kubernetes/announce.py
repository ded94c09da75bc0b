"""Says something about a pod by an Event: once, whoever says it and however often."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from carrel.kubernetes.cluster import AlreadyExists, Cluster, Forbidden
from carrel.kubernetes.objects import events
from carrel.kubernetes.objects.events import Named, Note
from carrel.kubernetes.objects.resources import EVENTS, PODS
from carrel.lifecycle.pod_events import TELLER


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class About:
    """A pod, as far as an Event names it."""

    metadata: _Name

    @classmethod
    def the(cls, pod: Mapping[str, Any]) -> "About":
        metadata = pod["metadata"]
        return cls(_Name(metadata["name"], metadata["namespace"], metadata["uid"]))


async def announce(cluster: Cluster, about: Named, note: Note, now: datetime) -> None:
    """An Event is named after what it says: if there is one already, it was said."""
    try:
        await cluster.create(EVENTS, events.event(about, PODS, note, TELLER, now), about.metadata.namespace)
    except AlreadyExists:
        pass
    except Forbidden as error:
        if not error.is_namespace_going:
            raise
