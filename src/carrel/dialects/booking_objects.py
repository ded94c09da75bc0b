"""Bookings as objects of the cluster: what webhook, extender and controller know of them.

    kind Booking (carrel.dev/v1), one for each booking that has not ended; its name is the booking's id
      spec     who, which model, how many GPUs, from when to when: written by the booking service alone; where bookings
               are made elsewhere, by the controller from the answers that it gets there (label `carrel.dev/source`)
      status   how many of the GPUs are used, and by which pods: written by the controller

The database stays the place where bookings are made. An object that cannot be read entitles to nothing.

A booking *settles* first: nobody loses a GPU to it until `settlingSeconds` after it was made, which the API server
wrote as the object's `creationTimestamp`, or after it came to entitle to more (`enlarged`). One that was made ahead has
settled when it starts.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from carrel.ids import NO_BOOKING, BookingId, PersonId
from carrel.kubernetes.objects.kinds import Metadata, Object, ObjectPart
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
    settling_seconds: int = 10
    """How long it settles before anybody loses a GPU to it."""
    enlarged: str = ""
    """When it came to entitle to more GPUs, or from earlier on; empty: never since the object was made."""


class BookingObjectStatus(ObjectPart):
    used: int | None = None
    """None: nobody has counted yet."""
    pods: tuple[str, ...] = ()
    """The covered pods, as namespace/name."""


class BookingMetadata(Metadata):
    name: BookingId = NO_BOOKING


class BookingObject(Object):
    metadata: BookingMetadata = msgspec.field(default_factory=BookingMetadata)
    spec: BookingObjectSpec = msgspec.field(default_factory=BookingObjectSpec)
    status: BookingObjectStatus = msgspec.field(default_factory=BookingObjectStatus)


BOOKINGS = Resource(BookingObject, "carrel.dev", "v1", "bookings", "Booking", namespaced=False)

SOURCE, ENQUIRY = "carrel.dev/source", "enquiry"
"""The label of an object that the controller wrote from the answer of a booking service elsewhere."""

MAIA_IDS = "maia-"
"""How the ids of bookings in MAIA's dashboard begin."""

KEPT_AFTER_END = timedelta(minutes=10)
"""How long the object of a booking stays after its regular end. The object of a cancelled booking goes at once: so the
controller can tell the two apart, also if it was not running at that moment."""


LONGEST_SETTLING_S = 3600
LONG_AGO = datetime.min.replace(tzinfo=UTC)


person_named = cast("Callable[[str], PersonId]", lowered)
"""The name of a person as bookings have it."""


def namespace_named(name: str) -> str:
    """The name of a namespace as bookings have it: MAIA's projects have underscores, their namespaces have dashes."""
    return name.lower().replace("_", "-")


def read_entitlement(booking: BookingObject) -> Entitlement:
    """Raises `Malformed`."""
    spec, where = booking.spec, subject(booking.metadata, "Booking")
    if spec.gpus < 1:
        raise Malformed(where, "spec.gpus", spec.gpus, "a number of at least 1")
    if spec.share_of < 1:
        raise Malformed(where, "spec.shareOf", spec.share_of, "a number of at least 1")
    if not 0 <= spec.settling_seconds <= LONGEST_SETTLING_S:
        raise Malformed(where, "spec.settlingSeconds", spec.settling_seconds, f"a number up to {LONGEST_SETTLING_S}")
    start, made = instant(spec.start, where, "spec.start"), booking.metadata.creation_timestamp
    since = instant(made, where, "metadata.creationTimestamp") if made else LONG_AGO
    if spec.enlarged:
        since = max(since, instant(spec.enlarged, where, "spec.enlarged"))
    return Entitlement(
        booking=booking.metadata.name,
        people=frozenset(filter(None, map(person_named, (spec.user, *spec.members)))),
        model=spec.model,
        gpus=spec.gpus,
        start=start,
        ends=instant(spec.end, where, "spec.end"),
        share_of=spec.share_of,
        namespace=namespace_named(spec.namespace),
        group=spec.group,
        settled=max(start, since + timedelta(seconds=spec.settling_seconds)),
    )


def is_maias(booking: BookingId) -> bool:
    """Return whether the booking was made in MAIA's dashboard, for one GPU, whatever number it covers."""
    return booking.startswith(MAIA_IDS)


def is_from_enquiry(booking: BookingObject) -> bool:
    return booking.metadata.labels.get(SOURCE) == ENQUIRY


def says_the_same(booking: BookingObject, body: Mapping[str, Any]) -> bool:
    """Whether the object is what `write_booking` gave."""
    source = body["metadata"].get("labels", {}).get(SOURCE)
    wanted = msgspec.structs.replace(_spec_of(body), enlarged=booking.spec.enlarged)
    return booking.metadata.labels.get(SOURCE) == source and booking.spec == wanted


def write_change(booking: BookingObject, body: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """What `write_booking` gave, to replace the object; it says since when it entitles to more, if it does."""
    enlarged = seconds(now) if _entitles_to_more(_spec_of(body), booking.spec) else booking.spec.enlarged
    return {**body, "spec": {**body["spec"], **({"enlarged": enlarged} if enlarged else {})}}


def _entitles_to_more(spec: BookingObjectSpec, before: BookingObjectSpec) -> bool:
    """More GPUs, larger parts of one, or a start that is nearer. Of what somebody has made unreadable: yes."""
    try:
        is_earlier = instant(spec.start, "", "start") < instant(before.start, "", "start")
    except Malformed:
        is_earlier = True
    return is_earlier or spec.gpus > before.gpus or spec.share_of < before.share_of


def _spec_of(body: Mapping[str, Any]) -> BookingObjectSpec:
    return msgspec.convert(body["spec"], BookingObjectSpec)


def write_booking(
    entitlement: Entitlement, user: str, version: int, source: str = "", settling_s: int | None = None
) -> dict[str, Any]:
    """The whole object, without its status. `settling_s`: None means the usual time."""
    members = sorted(entitlement.people - {person_named(user)})
    optional: dict[str, Any] = {
        "user": user,
        "group": entitlement.group,
        "members": members,
        "shareOf": entitlement.share_of if entitlement.share_of > 1 else None,
        "namespace": entitlement.namespace,
    }
    settling = {} if settling_s is None else {"settlingSeconds": settling_s}
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
            **settling,
            **{key: value for key, value in optional.items() if value},
        },
    }


def write_status(used: int, pods: Sequence[str]) -> dict[str, Any]:
    return {"used": used, "pods": sorted(pods)}
