"""Events of Kubernetes (core/v1): a sentence about an object, as `kubectl describe` shows it.

An Event's name is made of what it says, so the same sentence about the same object is the same Event, whoever writes
it and however often: it is told once, and counted when it is true again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

from carrel.kubernetes.objects.kinds import EventObject
from carrel.kubernetes.objects.resources import EVENTS, Resource
from carrel.parsing.time import seconds

LONGEST_MESSAGE = 1024
"""What events.k8s.io takes; core/v1 takes more, but both show the same objects."""
LONGEST_NAME = 253

WARNING = "Warning"
NORMAL = "Normal"


class Name(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


class Named(Protocol):
    """Whatever an Event can be about."""

    @property
    def metadata(self) -> Name: ...


@dataclass(frozen=True, slots=True)
class Note:
    """What is to be told."""

    reason: str
    """One word in UpperCamelCase, for machines."""
    message: str
    """For people."""
    type: str = NORMAL

    @property
    def text(self) -> str:
        """The message as far as an Event can carry it."""
        message = self.message
        return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"


def event_name(about: Named, note: Note) -> str:
    spoken = "\n".join((about.metadata.uid, note.reason, note.text))
    digest = sha256(spoken.encode()).hexdigest()[:16]
    return f"{about.metadata.name[: LONGEST_NAME - len(digest) - 1].rstrip('-.')}.{digest}"


def event(about: Named, resource: Resource[Any], note: Note, teller: str, now: datetime) -> dict[str, Any]:
    metadata, told_at = about.metadata, seconds(now)
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": event_name(about, note), "namespace": metadata.namespace},
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
        "source": {"component": teller},
        "reportingComponent": teller,
        "firstTimestamp": told_at,
        "lastTimestamp": told_at,
        "count": 1,
    }


def told_again(event: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """A merge patch for an Event that is true once more."""
    return {"count": (event.get("count") or 0) + 1, "lastTimestamp": seconds(now)}


def about_by(uid: str, teller: str) -> str:
    """The field selector of all that somebody told about an object."""
    return f"involvedObject.uid={uid},source={teller}"


def says(event: EventObject, note: Note) -> bool:
    return event.reason == note.reason and event.message == note.text
