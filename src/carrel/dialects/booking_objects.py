"""Bookings as objects of the cluster: what webhook, extender and controller know of them.

    kind Booking (carrel.dev/v1), one for each booking that has not ended; its name is the booking's id
      spec     who, which model, how many GPUs, from when to when: written by the booking service alone; where bookings
               are made elsewhere, by the controller from the answers that it gets there (label `carrel.dev/source`)
      status   how many of the GPUs are used, and by which pods: written by the controller

The database stays the place where bookings are made. An object that cannot be read entitles to nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from carrel.kubernetes.objects.kinds import Object, ObjectPart
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import Resource
from carrel.ledger.coverage import Entitlement
from carrel.parsing.addresses import lowered
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, seconds


class BookingObjectSpec(ObjectPart):
    user: str = ""
    """Whose booking it is; empty: a group's."""
    group: str = ""
    members: tuple[str, ...] = ()
    """Of the group: who may use the booking."""
    model: str = ""
    gpus: int = 0
    share_of: int = 1
    """More than one: not whole GPUs but such a part of one GPU."""
    namespace: str = ""
    """The only namespace that it is for; empty: all."""
    start: str = ""
    end: str = ""
    """When it ends: of a booking that was cancelled while it ran, when that was."""
    version: int = 0
    """Of the booking in the database: an older one never replaces a newer one."""


class BookingObjectStatus(ObjectPart):
    used: int | None = None
    """None: nobody has counted yet."""
    pods: tuple[str, ...] = ()
    """The covered pods, as namespace/name."""


class BookingObject(Object):
    spec: BookingObjectSpec = msgspec.field(default_factory=BookingObjectSpec)
    status: BookingObjectStatus = msgspec.field(default_factory=BookingObjectStatus)


BOOKINGS = Resource(BookingObject, "carrel.dev", "v1", "bookings", "Booking", namespaced=False)

SOURCE, ENQUIRY = "carrel.dev/source", "enquiry"
"""The label of an object that the controller wrote from the answer of a booking service elsewhere."""

KEPT_AFTER_END = timedelta(minutes=10)
"""How long the object of a booking stays after its regular end. The object of a cancelled booking goes at once: so the
controller can tell the two apart, also if it was not running at that moment."""


def person_named(name: str) -> str:
    """As bookings name people."""
    return lowered(name)


def namespace_named(name: str) -> str:
    """As bookings name namespaces: MAIA's projects have underscores, their namespaces have dashes."""
    return name.lower().replace("_", "-")


def read_entitlement(booking: BookingObject) -> Entitlement:
    """Raises `Malformed`."""
    spec, where = booking.spec, subject(booking.metadata, "Booking")
    if spec.gpus < 1:
        raise Malformed(where, "spec.gpus", spec.gpus, "a number of at least 1")
    if spec.share_of < 1:
        raise Malformed(where, "spec.shareOf", spec.share_of, "a number of at least 1")
    return Entitlement(
        booking=booking.metadata.name,
        people=frozenset(filter(None, map(person_named, (spec.user, *spec.members)))),
        model=spec.model,
        gpus=spec.gpus,
        start=instant(spec.start, where, "spec.start"),
        ends=instant(spec.end, where, "spec.end"),
        share_of=spec.share_of,
        namespace=namespace_named(spec.namespace),
        group=spec.group,
    )


def is_from_enquiry(booking: BookingObject) -> bool:
    return booking.metadata.labels.get(SOURCE) == ENQUIRY


def says_the_same(booking: BookingObject, body: Mapping[str, Any]) -> bool:
    """Whether the object is what `write_booking` gave."""
    source = body["metadata"].get("labels", {}).get(SOURCE)
    return booking.metadata.labels.get(SOURCE) == source and booking.spec == msgspec.convert(
        body["spec"], BookingObjectSpec
    )


def write_booking(entitlement: Entitlement, user: str, version: int, source: str = "") -> dict[str, Any]:
    """The whole object, without its status."""
    members = sorted(entitlement.people - {person_named(user)})
    optional: dict[str, Any] = {
        "user": user,
        "group": entitlement.group,
        "members": members,
        "shareOf": entitlement.share_of if entitlement.share_of > 1 else None,
        "namespace": entitlement.namespace,
    }
    return {
        "apiVersion": BOOKINGS.api_version,
        "kind": BOOKINGS.kind,
        "metadata": {"name": entitlement.booking, **({"labels": {SOURCE: source}} if source else {})},
        "spec": {
            "model": entitlement.model,
            "gpus": entitlement.gpus,
            "start": seconds(entitlement.start),
            "end": seconds(entitlement.ends),
            "version": version,
            **{key: value for key, value in optional.items() if value},
        },
    }


def write_status(used: int, pods: Sequence[str]) -> dict[str, Any]:
    return {"used": used, "pods": sorted(pods)}
