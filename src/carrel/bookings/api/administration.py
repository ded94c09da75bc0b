"""/api/v1: maintenance, usage and the log."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response

from carrel.bookings.api.answers import entry_out, use_out, window_out
from carrel.bookings.api.errors import accepted, malformed
from carrel.bookings.api.models import Instant, LogOut, MaintenanceIn, UsageOut, WindowOut, WindowsOut
from carrel.bookings.queries import FOREVER
from carrel.bookings.records import PersonUsage
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.parsing.time import seconds

router = APIRouter(tags=["administration"])

A_MONTH = timedelta(days=30)


@router.get("/maintenance", summary="When GPUs cannot be booked")
async def maintenance(
    service: CurrentService, person: CurrentPerson, start: Instant | None = None, end: Instant | None = None
) -> WindowsOut:
    windows = await service.queries.maintenance(start or service.queries.now(), end or FOREVER)
    return WindowsOut(items=[window_out(window) for window in windows])


@router.post("/maintenance", status_code=201, summary="Take GPUs out of the calendar; bookings in that time stay")
async def add_maintenance(service: CurrentService, person: CurrentPerson, asked: MaintenanceIn) -> WindowOut:
    return window_out(accepted(await service.commands.add_maintenance(asked.maintenance(), asked.why, person)))


@router.delete("/maintenance/{id}", status_code=204, summary="End the maintenance")
async def remove_maintenance(service: CurrentService, person: CurrentPerson, id: str) -> Response:
    accepted(await service.commands.remove_maintenance(id if id.isalnum() else "", person))
    return Response(status_code=204)


@router.get("/usage", summary="What each person had booked, and what their pods held")
async def usage(
    service: CurrentService, person: CurrentPerson, start: Instant | None = None, end: Instant | None = None
) -> UsageOut:
    """A lab admin sees everybody, other people themselves."""
    until = end or service.queries.now()
    since = start or until - A_MONTH
    if since >= until:
        raise malformed(("end", "an instant after the start is expected"))
    uses: Sequence[PersonUsage] = await service.queries.usage(since, until)
    counted = None
    if (cluster := service.cluster_view) is not None:
        uses, counted = cluster.with_held(uses, since, until), cluster.usage.since
    return UsageOut(
        start=seconds(since),
        end=seconds(until),
        held_since=seconds(counted) if counted else None,
        items=[use_out(use) for use in uses if use.is_seen_by(person)],
    )


@router.get("/audit", summary="Who did what, when, to whose booking, and why")
async def audit(
    service: CurrentService,
    person: CurrentPerson,
    before: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> LogOut:
    """A lab admin sees everything, other people what concerns them. Newest first."""
    entries = await service.queries.log(person, before, limit)
    more = entries[-1].number if len(entries) == limit else None
    return LogOut(items=[entry_out(entry) for entry in entries], next_before=more)
