"""Events of Kubernetes (core/v1): a message about an object, as `kubectl describe` shows it.

An Event is named after what it says, so the same message about the same object is the same Event, whoever writes it
and however often: it is written once, and counted when it is true again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import EVENTS, Resource
from carrel.parsing.printable import printable
from carrel.parsing.time import seconds

LONGEST_MESSAGE = 1024
"""The limit of events.k8s.io; core/v1 allows more, but both show the same objects."""
LONGEST_NAME = 253
OF_CLUSTER_OBJECTS = "default"
"""The namespace of Events about objects that have none, such as Nodes."""

WARNING = "Warning"
NORMAL = "Normal"


@dataclass(frozen=True, slots=True)
class Note:
    """What an Event says."""

    reason: str
    """One word in UpperCamelCase, for machines."""
    message: str
    """For people."""
    type: str = NORMAL
    annotations: tuple[tuple[str, str], ...] = ()
    """Of the Event, for programs: the message is not to be parsed."""

    @property
    def text(self) -> str:
        """The message as far as an Event can carry it."""
        message = printable(self.message)
        return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"


def event_name(about: Object, note: Note) -> str:
    content = "\n".join((about.metadata.uid, note.reason, note.text))
    digest = sha256(content.encode()).hexdigest()[:16]
    return f"{about.metadata.name[: LONGEST_NAME - len(digest) - 1].rstrip('-.')}.{digest}"


def event_body(about: Object, resource: Resource[Any], note: Note, component: str, now: datetime) -> dict[str, Any]:
    metadata, written_at = about.metadata, seconds(now)
    notes = {"annotations": dict(note.annotations)} if note.annotations else {}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": event_name(about, note), "namespace": metadata.namespace or OF_CLUSTER_OBJECTS, **notes},
        "involvedObject": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "namespace": metadata.namespace,
            "name": metadata.name,
            "uid": metadata.uid,
        },
        "type": note.type,
        "reason": note.reason,
        "message": note.text,
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": written_at,
        "lastTimestamp": written_at,
        "count": 1,
    }


def counted_again(event: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """A merge patch for an Event that is true once more."""
    return {"count": (event.get("count") or 0) + 1, "lastTimestamp": seconds(now)}


def recorded_by(component: str, uid: str) -> str:
    """The field selector of all Events that a component wrote about an object."""
    return f"involvedObject.uid={uid},source={component}"
