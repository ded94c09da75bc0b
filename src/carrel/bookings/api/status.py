"""/api/v1/booking-status: has a person an active booking now? For Carrel's own webhook and controller.

They send the token that they share with this service, as MAIA's clients do.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field

from carrel.bookings.api.models import Word
from carrel.bookings.client.status import BookingStatus, write_status
from carrel.bookings.service import CurrentService
from carrel.http.problems import Problem
from carrel.ledger.tiers import Tier

router = APIRouter(prefix="/booking-status", tags=["status"])


class StatusQuestion(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"user": "ada@lab.org", "namespace": "lab"}]}
    )

    user: Annotated[Word, Field(min_length=1, description="Whose bookings.")]
    namespace: Annotated[Word, Field(description="A booking for another namespace does not count.")] = ""


class StatusOut(BaseModel):
    tier: Tier
    ends: Annotated[str | None, Field(description="When the active booking ends; null: there is none.")]
    model: str
    gpus: Annotated[int, Field(description="How many GPUs are booked.")]
    id: Annotated[str, Field(description="Of the active booking; empty: there is none.")] = ""


@router.post("", summary="Has this person an active booking? For Carrel's own components", response_model=StatusOut)
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
