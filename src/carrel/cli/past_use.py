"""Asks the booking service what people's pods did with their GPUs, for a snapshot: the cluster itself does not keep it.

A snapshot is of use without it too. So whatever goes wrong here is said, and the snapshot is taken.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec

from carrel.cli.booking_client import (
    BookingClient,
    Login,
    NotTheService,
    RequestRefused,
    ServiceUnreachable,
    is_safe,
    known_login,
)
from carrel.cli.cluster_snapshot import UsedHour
from carrel.cli.options import BookingServiceSettings
from carrel.parsing import Malformed
from carrel.parsing.time import seconds
from carrel.parsing.validation import malformed
from carrel.simulation.idle_pods import FOUR_WEEKS_H
from carrel.simulation.snapshot_form import GpuHours

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class _Item(msgspec.Struct):
    """Of the service's answer, what is needed. It may have more."""

    user: str
    model: str
    start: Instant
    held_gpu_hours: GpuHours | None = None
    """None: the row is of something else than pods."""
    active_gpu_hours: GpuHours | None = None
    idle_gpu_hours: GpuHours | None = None


class _Answer(msgspec.Struct):
    items: list[_Item]


@dataclass(frozen=True, slots=True)
class PastUseAnswer:
    hours: tuple[UsedHour, ...]
    remark: str
    """Whose hours these are, or why there are none."""


def past_use(settings: BookingServiceSettings, now: datetime) -> PastUseAnswer:
    """Return the hours of the last four weeks."""
    login = known_login(settings)
    if not login.server or not login.token:
        return _none("you are not logged in to the booking service (carrel login)")
    if not is_safe(login.server, settings.insecure):
        return _none(f"without TLS, others could read your token on its way to {login.server} (--insecure allows it)")
    try:
        hours = _hours(login, now)
    except (RequestRefused, ServiceUnreachable, NotTheService, Malformed) as error:
        return _none(f"{login.server}: {error}")
    people = len({each.person for each in hours})
    whose = f"of {people} {'person' if people == 1 else 'people'}, as {login.server} shows it to you"
    return PastUseAnswer(hours, f"Past use {whose}: to lab admins everybody's.")


def _none(why: str) -> PastUseAnswer:
    return PastUseAnswer((), f"Past use is not in the snapshot: {why.rstrip('.')}.")


def _hours(login: Login, now: datetime) -> tuple[UsedHour, ...]:
    """Week by week: all of it in one answer would be large."""
    client, found = BookingClient(login), list[UsedHour]()
    start = now.replace(minute=0, second=0, microsecond=0) - FOUR_WEEKS_H * HOUR
    while start < now:
        until = min(start + WEEK, now)
        params = {"by": "person", "step": "hour", "start": seconds(start), "end": seconds(until)}
        found += _read(client.call("GET", "/usage", params=params).body)
        start = until
    return tuple(found)


def _read(body: Any) -> list[UsedHour]:
    try:
        answer = msgspec.convert(body, _Answer)
    except msgspec.ValidationError as error:
        raise malformed("the answer about usage", error) from None
    return [
        UsedHour(
            each.user,
            each.model,
            each.start,
            each.held_gpu_hours,
            each.active_gpu_hours or 0.0,
            each.idle_gpu_hours or 0.0,
        )
        for each in answer.items
        if each.held_gpu_hours is not None
    ]
