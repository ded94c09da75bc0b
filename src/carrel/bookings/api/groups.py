"""/api/v1/groups: who is in a group, and who books for it."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from carrel.bookings.api.errors import problem_of
from carrel.bookings.api.models import Email, GroupName, GroupOut, GroupPersonIn, GroupsOut, Prose, group_out
from carrel.bookings.groups import GroupRole
from carrel.bookings.records import BookingRefusal
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in import CurrentPerson

router = APIRouter(prefix="/groups", tags=["groups"])

GroupPath = Annotated[GroupName, Path(description="As it is written; a slash as %2F.", examples=["vision"])]
PLACE = "/{group:path}/people/{email}"


@router.get("", summary="Your groups; for a lab admin all")
async def groups(service: CurrentService, person: CurrentPerson) -> GroupsOut:
    found = await service.queries.groups()
    seen = [group for group in found if person.is_lab_admin or person.email in group.members]
    return GroupsOut(items=[group_out(group, person) for group in seen])


@router.put(PLACE, summary="List a person as member or manager; the first one makes the group. For lab admins")
async def list_person(
    service: CurrentService, person: CurrentPerson, group: GroupPath, email: Email, given: GroupPersonIn
) -> GroupOut:
    is_manager = given.role is GroupRole.MANAGER
    outcome = await service.group_commands.list_person(group, email, person, is_manager=is_manager, reason=given.reason)
    if isinstance(outcome, BookingRefusal):
        raise problem_of(outcome)
    return group_out(outcome, person)


@router.delete(PLACE, status_code=204, summary="Take a person off the list. For lab admins")
async def remove_person(
    service: CurrentService,
    person: CurrentPerson,
    group: GroupPath,
    email: Email,
    reason: Annotated[Prose, Query(description="For the log.")] = "",
) -> Response:
    outcome = await service.group_commands.remove_person(group, email, person, reason)
    if isinstance(outcome, BookingRefusal):
        raise problem_of(outcome)
    return Response(status_code=204)
