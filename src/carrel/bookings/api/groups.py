"""/api/v1/groups: who is in a group, and who books for it."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from carrel.bookings.api.errors import accepted
from carrel.bookings.api.models import Email, GroupName, Prose
from carrel.bookings.groups import BookingGroup, GroupRole
from carrel.bookings.people import Person
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.parsing.time import seconds

router = APIRouter(prefix="/groups", tags=["groups"])

GroupPath = Annotated[GroupName, Path(description="As it is written; a slash as %2F.", examples=["vision"])]
PLACE = "/{group:path}/people/{email}"


class GroupPersonIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"role": "manager", "reason": "leads the project"}]}
    )

    role: Annotated[GroupRole, Field(description="A manager also books, changes and cancels for the group.")]
    reason: Annotated[Prose, Field(description="For the log.")] = ""


class GroupPersonOut(BaseModel):
    email: str
    role: GroupRole
    listed: Annotated[bool, Field(description="By an admin; otherwise the sign-in tells the group.")]
    seen_at: Annotated[str | None, Field(description="When a sign-in last told the group.")]


class GroupOut(BaseModel):
    name: str
    people: list[GroupPersonOut]
    may_book: Annotated[bool, Field(description="Whether you may book, change and cancel for it.")]


class GroupsOut(BaseModel):
    items: list[GroupOut]


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
    return group_out(accepted(outcome), person)


@router.delete(PLACE, status_code=204, summary="Take a person off the list. For lab admins")
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
    return GroupOut(
        name=group.name,
        people=[
            GroupPersonOut(
                email=each.email,
                role=GroupRole.MANAGER if each.is_manager else GroupRole.MEMBER,
                listed=each.is_listed,
                seen_at=seconds(each.seen_at) if each.seen_at else None,
            )
            for each in group.people
        ],
        may_book=person.is_lab_admin or person.email in group.managers,
    )
