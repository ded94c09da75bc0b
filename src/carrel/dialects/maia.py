"""MAIA's words over HTTP: bookings, who has which GPU, and the pod terminator. Its words on pods are in `tier`.

    POST gpu-schedulability/   {user_email, namespace, token}        → {schedulable, until, gpu}
                               … with booking {gpu, starting_time, ending_time}  → {message} or {error}
    GET  gpu_status_summary/   → {gpu: {<model>: free}, gpu_allocations: {"<user>, <namespace>": {…}}}
    terminator                 POST /random-delete  GET /get-expired-pods  POST /delete-expired-pod

MAIA's programs in Go read field names in any letter case, and its manual writes them with capitals: so do we read them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from carrel.dialects.tier import TERMINATE_AT, TerminateAt, write_terminate_at
from carrel.parsing.fields import Field
from carrel.parsing.time import instant, seconds

SCHEDULABILITY_PATH = "/maia-api/gpu-schedulability/"
_WITHOUT_OFFSET = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?", re.ASCII)
_BOOKING_TIME = "%Y-%m-%d %H:%M:%S"
DEFAULT_TOKENS = ("S#perS3crEt_007", "secret-token")
"""What MAIA's app and its chart come with: everybody knows them."""


# --- bookings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wish:
    """A booking to be made."""

    model: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Enquiry:
    """Has this person a booking now? Or, with a wish: make one."""

    user: str
    namespace: str
    token: str
    wish: Wish | None = None

    def __repr__(self) -> str:
        return f"Enquiry(user={self.user!r}, namespace={self.namespace!r}, wish={self.wish!r})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is a booking active now, until when, and of which model?"""

    schedulable: bool
    until: datetime | None = None
    model: str = ""


def read_enquiry(body: object, zone: tzinfo = UTC) -> Enquiry:
    """The times of a wish have no offset on the wire; they are meant in the lab's zone."""
    field = _in_any_case(body, "booking enquiry")
    wish = field["booking"]
    return Enquiry(
        user=field["user_email"].some_text(),
        namespace=field["namespace"].text(),
        token=field["token"].text(),
        wish=_wish(wish, zone) if wish.present else None,
    )


def write_enquiry(enquiry: Enquiry, zone: tzinfo = UTC) -> dict[str, Any]:
    body: dict[str, Any] = {"user_email": enquiry.user, "namespace": enquiry.namespace, "token": enquiry.token}
    if enquiry.wish is not None:
        body["booking"] = {
            "gpu": enquiry.wish.model,
            "starting_time": enquiry.wish.start.astimezone(zone).strftime(_BOOKING_TIME),
            "ending_time": enquiry.wish.end.astimezone(zone).strftime(_BOOKING_TIME),
        }
    return body


def read_verdict(body: object) -> Verdict:
    field = _in_any_case(body, "booking verdict")
    if not field["schedulable"].present:
        raise field["schedulable"].malformed("true or false")
    until = field["until"].text()
    return Verdict(
        schedulable=field["schedulable"].flag(),
        until=instant(_with_offset(until), field.subject, "until") if until else None,
        model=field["gpu"].text(),
    )


def write_verdict(verdict: Verdict) -> dict[str, Any]:
    body = {"schedulable": verdict.schedulable, "until": seconds(verdict.until) if verdict.until else None}
    return {**body, "gpu": verdict.model} if verdict.schedulable else body


def booked() -> dict[str, str]:
    return {"message": "Booking created successfully"}


def not_booked(reasons: Sequence[str]) -> dict[str, str]:
    """All broken rules at once, one per line."""
    return {"error": "\n".join(reasons)}


def same_namespace(one: str, other: str) -> bool:
    """MAIA's projects have underscores, their namespaces have dashes."""
    return one.lower().replace("_", "-") == other.lower().replace("_", "-")


def _with_offset(until: str) -> str:
    """An instant without an offset is in UTC: MAIA's dashboard stores its bookings in UTC, and a database may lose the
    offset."""
    return f"{until[:10]}T{until[11:]}Z" if _WITHOUT_OFFSET.fullmatch(until) else until


def _wish(field: Field, zone: tzinfo) -> Wish:
    return Wish(
        field["gpu"].some_text(), _booking_time(field["starting_time"], zone), _booking_time(field["ending_time"], zone)
    )


def _booking_time(field: Field, zone: tzinfo) -> datetime:
    text = field.some_text()
    try:
        moment = datetime.strptime(text, _BOOKING_TIME).replace(tzinfo=zone).astimezone(UTC)
        # strptime also takes `2025-6-1 8:0:0`; a zone may lead out of the years that there are; and an hour that is
        # skipped in spring is no time. Of an hour that comes twice in autumn, the first is meant.
        if moment.astimezone(zone).strftime(_BOOKING_TIME) == text:
            return moment
    except (ValueError, OverflowError):
        pass
    raise field.malformed("a time such as 2025-06-01 08:00:00")


# --- who has what ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A pod with a GPU, as the summary shows it."""

    user: str
    node: str
    cluster: str
    namespace: str
    gpus: str
    model: str
    size: str
    expiration: TerminateAt | None = None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    free: Mapping[str, int]
    """Free GPUs by model."""
    tenancies: Sequence[Tenancy] = ()


def write_summary(summary: Summary) -> dict[str, Any]:
    return {
        "gpu": dict(summary.free),
        "gpu_allocations": {f"{t.user}, {t.namespace}": _tenancy(t) for t in summary.tenancies},
    }


def _tenancy(tenancy: Tenancy) -> dict[str, Any]:
    return {
        "node": tenancy.node,
        "cluster": tenancy.cluster,
        "namespace": tenancy.namespace,
        "gpu": tenancy.gpus,
        "gpu_name": tenancy.model,
        "gpu_size": tenancy.size,
        "expiration": write_terminate_at(tenancy.expiration)[TERMINATE_AT] if tenancy.expiration else "",
        "is_expired": tenancy.expired,
    }


# --- the pod terminator ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodToEnd:
    namespace: str
    name: str


def read_pod_to_end(body: object) -> PodToEnd:
    field = _in_any_case(body, "request to end a pod")
    return PodToEnd(field["namespace"].some_text(), field["pod_name"].some_text())


def ended(pod: str) -> dict[str, str]:
    return {"status": "success", "deleted_pod": pod}


def expired(pods: Sequence[str]) -> dict[str, Any]:
    return {"status": "success", "expired_pods": list(pods)} if pods else nothing_expired()


def nothing_expired() -> dict[str, str]:
    return {"status": "no expired pods found"}


def not_ended(message: str) -> dict[str, str]:
    return {"status": "error", "message": message}


def _in_any_case(body: object, subject: str) -> Field:
    """Its fields by their names in small letters."""
    if isinstance(body, dict):
        return Field({str(key).lower(): value for key, value in body.items()}, subject)
    return Field(body, subject)
