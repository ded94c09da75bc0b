"""/api/v1: maintenance, usage, the log, and groups: who is in one, and who books for it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import ConfigDict, Field

from carrel.bookings.api.errors import accepted, malformed
from carrel.bookings.api.models import (
    Email,
    GroupName,
    Instant,
    LogOut,
    MaintenanceIn,
    Moment,
    Prose,
    RequestModel,
    ResponseModel,
    UsageOut,
    WindowOut,
    WindowsOut,
)
from carrel.bookings.groups import BookingGroup, GroupRole
from carrel.bookings.people import Person
from carrel.bookings.queries import FOREVER
from carrel.bookings.records import PersonUsage
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson

router = APIRouter(tags=["administration"])
groups_router = APIRouter(prefix="/groups", tags=["groups"])

A_MONTH = timedelta(days=30)


@router.get("/maintenance", summary="When GPUs cannot be booked")
async def maintenance(
    service: CurrentService, person: CurrentPerson, start: Instant | None = None, end: Instant | None = None
) -> WindowsOut:
    windows = await service.queries.maintenance(start or service.queries.now(), end or FOREVER)
    return WindowsOut.model_validate({"items": windows})


@router.post(
    "/maintenance",
    status_code=201,
    summary="Take GPUs out of the calendar; bookings in that time stay",
)
async def add_maintenance(service: CurrentService, person: CurrentPerson, asked: MaintenanceIn) -> WindowOut:
    return WindowOut.model_validate(accepted(await service.commands.add_maintenance(asked.maintenance(), person)))


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
    seen = [use for use in uses if use.is_seen_by(person)]
    return UsageOut.model_validate({"start": since, "end": until, "held_since": counted, "items": seen})


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
    return LogOut.model_validate({"items": entries, "next_before": more})


GroupPath = Annotated[GroupName, Path(description="As it is written; a slash as %2F.", examples=["vision"])]
PLACE = "/{group:path}/people/{email}"


class GroupPersonIn(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"role": "manager", "reason": "leads the project"}]})

    role: Annotated[GroupRole, Field(description="A manager also books, changes and cancels for the group.")]
    reason: Annotated[Prose, Field(description="For the log.")] = ""


class GroupPersonOut(ResponseModel):
    email: str
    role: GroupRole
    listed: Annotated[bool, Field(description="By an admin; otherwise the sign-in tells the group.")]
    seen_at: Annotated[Moment | None, Field(description="When a sign-in last told the group.")]


class GroupOut(ResponseModel):
    name: str
    people: list[GroupPersonOut]
    may_book: Annotated[bool, Field(description="Whether you may book, change and cancel for it.")]


class GroupsOut(ResponseModel):
    items: list[GroupOut]


@groups_router.get("", summary="Your groups; for a lab admin all")
async def groups(service: CurrentService, person: CurrentPerson) -> GroupsOut:
    found = await service.queries.groups()
    seen = [group for group in found if person.is_lab_admin or person.email in group.members]
    return GroupsOut(items=[group_out(group, person) for group in seen])


@groups_router.put(PLACE, summary="List a person as member or manager; the first one makes the group. For lab admins")
async def list_person(
    service: CurrentService, person: CurrentPerson, group: GroupPath, email: Email, given: GroupPersonIn
) -> GroupOut:
    is_manager = given.role is GroupRole.MANAGER
    outcome = await service.group_commands.list_person(group, email, person, is_manager=is_manager, reason=given.reason)
    return group_out(accepted(outcome), person)


@groups_router.delete(PLACE, status_code=204, summary="Take a person off the list. For lab admins")
async def remove_person(
    service: CurrentService,
    person: CurrentPerson,
    group: GroupPath,
    email: Email,
    reason: Annotated[Prose, Query(description="For the log.")] = "",
) -> Response:
    accepted(await service.group_commands.remove_person(group, email, person, reason))
    return Response(status_code=204)


def group_out(group: BookingGroup, person: Person) -> GroupOut:
    may_book = person.is_lab_admin or person.email in group.managers
    return GroupOut.model_validate({"name": group.name, "people": group.people, "may_book": may_book})
