"""Asks the booking service what people's pods did with their GPUs, for a snapshot: the cluster itself does not keep it.

A snapshot is of use without it too. So whatever goes wrong here is said, and the snapshot is taken.
"""

from datetime import datetime, timedelta

import msgspec

from carrel.cli import booking_client as service
from carrel.cli.booking_client import BookingClient, Login, is_safe, known_login
from carrel.cli.cluster_snapshot import UsedHour
from carrel.cli.options import BookingServiceSettings
from carrel.parsing import Malformed
from carrel.parsing.time import seconds
from carrel.parsing.validation import malformed
from carrel.simulation.idle_pods import FOUR_WEEKS_H

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


class _UsageAnswer(msgspec.Struct):
    """What is needed of the service's answer. It has more."""

    items: list[UsedHour]


def past_use(settings: BookingServiceSettings, now: datetime) -> tuple[list[UsedHour], str]:
    """Return the hours of the last four weeks, and a remark: whose they are, or why there are none."""
    login = known_login(settings)
    if not login.server or not login.token:
        return _none("you are not logged in to the booking service (carrel login)")
    if not is_safe(login.server, settings.insecure):
        return _none(f"without TLS, others could read your token on its way to {login.server} (--insecure allows it)")
    try:
        hours = _hours(login, now)
    except (service.RequestRefused, service.ServiceUnreachable, service.NotTheService, Malformed) as error:
        return _none(f"{login.server}: {error}")
    people = len({each.user for each in hours if each.held_gpu_hours})
    whose = f"of {people} {'person' if people == 1 else 'people'}, as {login.server} shows it to you"
    return hours, f"Past use {whose}: to lab admins everybody's."


def _none(why: str) -> tuple[list[UsedHour], str]:
    return [], f"Past use is not in the snapshot: {why.rstrip('.')}."


def _hours(login: Login, now: datetime) -> list[UsedHour]:
    """Day by day: all of it in one answer would be large."""
    client, found = BookingClient(login), list[UsedHour]()
    start = now.replace(minute=0, second=0, microsecond=0) - FOUR_WEEKS_H * HOUR
    while start < now:
        until = min(start + DAY, now)
        params = {"by": "person", "step": "hour", "start": seconds(start), "end": seconds(until)}
        answer = client.call("GET", "/usage", params=params).body
        try:
            found += msgspec.convert(answer, _UsageAnswer).items
        except msgspec.ValidationError as error:
            raise malformed("the answer about usage", error) from None
        start = until
    return found
