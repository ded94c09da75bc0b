"""/api/v1/notices and /api/v1/booking-status: what other components report and ask.

A notice says that a pod lost its GPU, so that its person is notified. The status says whether a person has an active
booking now; the webhook and the controller ask with the token that they share with this service, as MAIA's clients do.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import ConfigDict, Field

from carrel.bookings.api.models import Email, Prose, RequestModel, ResponseModel, Word
from carrel.bookings.client import BookingStatus, write_status
from carrel.bookings.records import LogEntry
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson, forbidden
from carrel.http.problems import Problem
from carrel.ledger.tiers import Tier
from carrel.parsing.addresses import normal

router = APIRouter()


class RevokedNotice(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "0b6e2a2c-6a52-4d5b-9d4e-0f4f3c1f7b11",
                    "person": "ada@lab.org",
                    "namespace": "lab",
                    "pod": "train-0",
                    "node": "dgx-1",
                    "model": "NVIDIA-RTX-A6000",
                    "why": "for the booked pod lab/other-0",
                }
            ]
        },
    )

    id: Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$", description="The pod's uid: a pod loses its GPU once.")]
    person: Annotated[Email, Field(min_length=1, description="Whose pod it was.")]
    namespace: Word
    pod: Word
    node: Word = ""
    model: Word = ""
    why: Prose = ""


class NoticeRecorded(ResponseModel):
    is_new: Annotated[bool, Field(description="False: it was reported before; the person is notified once.")]


@router.post("/notices/revoked", tags=["notices"], summary="A pod lost its GPU; for Carrel's own controller")
async def revoked(service: CurrentService, person: CurrentPerson, notice: RevokedNotice) -> NoticeRecorded:
    if not person.is_service:
        raise forbidden("Only Carrel's own components may report this", "Name its ServiceAccount by --service.")
    names = ("namespace", "pod", "node", "model")
    details = {name: value for name in names if (value := getattr(notice, name))}
    subject = normal(notice.person)
    entry = LogEntry(service.queries.now(), person.email, "revoked", subject, why=notice.why, details=details)
    return NoticeRecorded(is_new=await service.outbox.note(f"revoked-{notice.id}", entry))


class StatusQuestion(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "ada@lab.org", "namespace": "lab"}]})

    user: Annotated[Word, Field(min_length=1, description="Whose bookings.")]
    namespace: Annotated[Word, Field(description="A booking for another namespace does not count.")] = ""


class StatusOut(ResponseModel):
    tier: Tier
    ends: Annotated[str | None, Field(description="When the active booking ends; null: there is none.")]
    model: str
    gpus: Annotated[int, Field(description="How many GPUs are booked.")]
    id: Annotated[str, Field(description="Of the active booking; empty: there is none.")] = ""


@router.post(
    "/booking-status",
    tags=["status"],
    summary="Has this person an active booking? For Carrel's own components",
    response_model=StatusOut,
)
async def booking_status(
    service: CurrentService,
    question: StatusQuestion,
    authorization: Annotated[str, Header(description="Bearer and the shared token.")] = "",
) -> Any:
    if not service.knows_token(authorization.removeprefix("Bearer ")):
        raise Problem(403, "forbidden", "Not allowed", "This needs the token that is set by --maia-token.")
    booking = await service.queries.active_booking(question.user, question.namespace)
    if booking is None:
        return write_status(BookingStatus())
    return write_status(BookingStatus(booking.ends, booking.model, booking.gpus, booking.id))
