"""/api/v1: maintenance, usage, the log, and groups: who is in one, and who books for it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import ConfigDict, Field, JsonValue

from carrel.bookings.api.errors import accepted, malformed
from carrel.bookings.api.models import (
    A_START,
    AN_END,
    Email,
    GroupName,
    Instant,
    LogOut,
    MaintenanceIn,
    MaintenanceOut,
    Moment,
    Prose,
    RequestModel,
    ResponseModel,
    UsageOut,
    WindowOut,
    WindowsOut,
    Word,
)
from carrel.bookings.groups import MOST_ADDRESSES, BookingGroup, GroupRole
from carrel.bookings.imports import GivenBooking, Mistakes
from carrel.bookings.maintenance_commands import MaintenancePreview
from carrel.bookings.people import Person, Role
from carrel.bookings.queries import FOREVER
from carrel.bookings.records import LogQuery, PersonUsage
from carrel.bookings.removal import PersonHas
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.dialects.maia_bookings import MOST_BOOKINGS
from carrel.parsing.addresses import normal

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
    summary="Take GPUs out of the calendar, and tell whom it hits; bookings in that time stay",
)
async def add_maintenance(service: CurrentService, person: CurrentPerson, asked: MaintenanceIn) -> MaintenanceOut:
    return _maintenance_out(accepted(await service.maintenance_commands.add(asked.request(), person)))


@router.post("/maintenance/preview", summary="Whom a maintenance would hit; nothing is changed")
async def preview_maintenance(service: CurrentService, person: CurrentPerson, asked: MaintenanceIn) -> MaintenanceOut:
    return _maintenance_out(accepted(await service.maintenance_commands.preview(asked.request(), person)))


@router.delete("/maintenance/{id}", status_code=204, summary="End the maintenance, and tell whom it would have hit")
async def remove_maintenance(service: CurrentService, person: CurrentPerson, id: str) -> Response:
    accepted(await service.maintenance_commands.remove(id if id.isalnum() else "", person))
    return Response(status_code=204)


AN_IMPORTED: dict[str, JsonValue] = {
    "user": "ada@lab.example",
    "model": "NVIDIA-RTX-A6000",
    "start": A_START,
    "end": AN_END,
}


class GivenBookingIn(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [AN_IMPORTED]})

    user: Word
    model: Word
    start: Instant
    end: Instant
    namespace: Word = ""


class ImportIn(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [AN_IMPORTED]}]})

    items: Annotated[list[GivenBookingIn], Field(min_length=1, max_length=MOST_BOOKINGS)]
    reason: Annotated[Prose, Field(description="For the log.")] = ""


class ImportOut(ResponseModel):
    made: int
    there: Annotated[int, Field(description="They were taken over before.")]


@router.post("/imported-bookings", summary="Take bookings over from another system, also those that are over")
async def take_over(service: CurrentService, person: CurrentPerson, asked: ImportIn) -> ImportOut:
    """All or none, by a lab admin. Sent again, none is there twice."""
    given = [GivenBooking(**each.model_dump()) for each in asked.items]
    try:
        outcome = accepted(await service.imports.take_over(given, person, asked.reason))
    except Mistakes as found:
        raise malformed(*((f"items.{each.item}", each.why) for each in found.mistakes)) from None
    return ImportOut(made=outcome.made, there=outcome.there)


BOOKED = ("id", "user", "group", "model", "gpus", "share", "start")


def _maintenance_out(seen: MaintenancePreview) -> MaintenanceOut:
    bookings = [
        {
            **{name: getattr(each.booking, name) for name in BOOKED},
            "end": each.booking.ends,
            "pods": list(each.pods),
            "lacks_gpus": each.lacks_gpus,
        }
        for each in seen.hit.bookings
    ]
    pods = [{"name": pod.name, "person": pod.person} for pod in seen.hit.pods]
    hit = {"models": dict(seen.hit.models), "bookings": bookings, "pods": pods}
    return MaintenanceOut.model_validate({**WindowOut.model_validate(seen.window).model_dump(), "hit": hit})


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
    user: Annotated[Word, Query(description="Whom it concerns, or who did it; `me` for you.")] = "",
    action: Annotated[Word, Query(description="Such as `booked` or `cancelled`.")] = "",
    start: Instant | None = None,
    end: Instant | None = None,
) -> LogOut:
    """A lab admin sees everything, other people what concerns them. Newest first."""
    whom = person.email if user == "me" else normal(user)
    query = LogQuery(person=whom, action=action, start=start, end=end, before=before, limit=limit)
    entries = await service.queries.log(person, query)
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


class GroupListIn(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"people": ["ada@lab.org", "Bob <bob@lab.org>"], "role": "member"}]}
    )

    people: Annotated[
        list[Annotated[str, Field(max_length=2000)]],
        Field(description=f"The lines of a list, with one address or several each; up to {MOST_ADDRESSES:,} people."),
    ]
    role: Annotated[GroupRole | None, Field(description="Null takes them off the list.")]
    reason: Annotated[Prose, Field(description="For the log.")] = ""


class GroupListOut(ResponseModel):
    group: GroupOut
    changed: Annotated[list[str], Field(description="Who was added, taken off, or got another role.")]
    unchanged: Annotated[int, Field(description="How many others were as they should be already.")]
    stay_managers: Annotated[
        list[str], Field(description="Who was to be a member and is a manager: take them off the list first.")
    ]


@groups_router.post(
    "/{group:path}/people", summary="List everybody of a list, or take them off: all of them or nobody. For lab admins"
)
async def list_people(
    service: CurrentService, person: CurrentPerson, group: GroupPath, given: GroupListIn
) -> GroupListOut:
    commands = service.group_commands
    done = accepted(await commands.list_people(group, given.people, person, given.role, given.reason))
    return GroupListOut(
        group=group_out(done.group, person),
        changed=list(done.changed),
        unchanged=done.unchanged,
        stay_managers=list(done.stay_managers),
    )


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


people_router = APIRouter(prefix="/people", tags=["people"])


class RemovalIn(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "left the lab"}]})

    reason: Annotated[Prose, Field(min_length=1, description="For the log and for the person, who is told.")]


class OwnBookingOut(ResponseModel):
    id: str
    model: str
    gpus: int
    share: bool
    start: Moment
    ends: Moment
    group: str


class PersonHasOut(ResponseModel):
    email: str
    ends: Annotated[list[str], Field(description="What ends, in words.", examples=[["1 booking", "2 tokens"]])]
    bookings: Annotated[list[OwnBookingOut], Field(description="Their own, active or planned: they are cancelled.")]
    groups: Annotated[list[str], Field(description="In which they are not any more.")]
    sessions: int
    tokens: int
    group_bookings: Annotated[list[OwnBookingOut], Field(description="Made by them for a group: these stay.")]
    configured_roles: Annotated[list[Role], Field(description="From the configuration: these stay.")]
    pods: Annotated[
        list[str],
        Field(description="Theirs that hold a GPU now: they run on without a booking.", examples=[["lab/train-0"]]),
    ]


EmailPath = Annotated[str, Path(max_length=320)]


@people_router.get("/{email}/removal", summary="What removing a person would end. For platform admins")
async def preview_removal(service: CurrentService, person: CurrentPerson, email: EmailPath) -> PersonHasOut:
    return _person_has(accepted(await service.removal.preview(email, person)))


@people_router.post(
    "/{email}/removal",
    summary="End a person's bookings, sessions, tokens and memberships, in one transaction. For platform admins",
)
async def remove_a_person(
    service: CurrentService, person: CurrentPerson, email: EmailPath, given: RemovalIn
) -> PersonHasOut:
    return _person_has(accepted(await service.removal.remove(email, person, given.reason)))


def _person_has(has: PersonHas) -> PersonHasOut:
    return PersonHasOut(
        email=has.email,
        ends=has.ends,
        bookings=[OwnBookingOut.model_validate(each.booking) for each in has.bookings],
        groups=list(has.groups),
        sessions=has.credentials.sessions,
        tokens=has.credentials.tokens,
        group_bookings=[OwnBookingOut.model_validate(each.booking) for each in has.group_bookings],
        configured_roles=list(has.configured),
        pods=list(has.pods),
    )
