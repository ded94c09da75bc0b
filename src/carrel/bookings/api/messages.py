"""/api/v1/me/messages: by which channels a person is told, and of what."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from carrel.bookings.api.models import RequestModel, ResponseModel, Word
from carrel.bookings.notifications.choices import OWN, TOPICS, shown_address
from carrel.bookings.notifications.own_choices import ChoicesChange
from carrel.bookings.people import Person
from carrel.bookings.service import CurrentService, ServiceParts
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.http.problems import Problem

router = APIRouter(prefix="/me/messages", tags=["people"])


class MessagesOut(ResponseModel):
    mail: bool
    addresses: dict[str, str] = Field(description="By channel. What works as a password is left out.")
    muted: list[str] = Field(description=f"Of {', '.join(TOPICS)}: those that are not told.")
    available: list[str] = Field(description="The channels of this lab.")


class MessagesIn(RequestModel):
    """What is not given stays as it was."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"addresses": {"slack": "https://hooks.slack.com/services/T000/B000/XXXX"}},
                {"mail": False, "muted": ["bookings"]},
            ]
        }
    )

    mail: bool | None = None
    addresses: dict[Word, Annotated[str, Field(max_length=2000)]] | None = Field(
        default=None,
        max_length=10,
        description=f"An address for {', '.join(OWN)}, or a room's id for matrix. Empty: not by it any more.",
    )
    muted: list[Word] | None = Field(default=None, max_length=20)


class TrialIn(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"channel": "slack"}]})

    channel: Word


class TrialOut(ResponseModel):
    arrived: bool
    why: str = Field(description="Why not.")


@router.get("", summary="By which channels you are told, and of what")
async def messages(service: CurrentService, person: CurrentPerson) -> MessagesOut:
    return await _shown(service, person)


@router.patch("", summary="Choose by which channels you are told, and of what")
async def choose(service: CurrentService, person: CurrentPerson, given: MessagesIn) -> MessagesOut:
    muted = None if given.muted is None else frozenset(given.muted)
    problems = await service.own_choices.change(ChoicesChange(given.mail, given.addresses, muted), person)
    if problems:
        raise Problem(422, "bad-choice", "Nothing was changed", " ".join(problems), "open /account")
    return await _shown(service, person)


@router.post("/test", summary="Send yourself a test message")
async def test(service: CurrentService, person: CurrentPerson, given: TrialIn) -> TrialOut:
    why = await service.own_choices.test(given.channel, person, service.queries.now())
    return TrialOut(arrived=not why, why=why)


async def _shown(service: ServiceParts, person: Person) -> MessagesOut:
    choices = (await service.authenticator.people.person(person.email)).messages
    addresses = {name: shown_address(name, given) for name, given in choices.addresses.items()}
    available = list(service.own_choices.available)
    return MessagesOut(mail=choices.by_mail, addresses=addresses, muted=sorted(choices.muted), available=available)
