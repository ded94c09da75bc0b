"""/api/v1/notices: what other components report, so that its person is notified: a pod lost its GPU."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from carrel.bookings.api.models import Email, Prose, Word
from carrel.bookings.records import LogEntry
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson, forbidden
from carrel.parsing.addresses import normal

router = APIRouter(prefix="/notices", tags=["notices"])


class RevokedNotice(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
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


class NoticeRecorded(BaseModel):
    is_new: Annotated[bool, Field(description="False: it was reported before; the person is notified once.")]


@router.post("/revoked", summary="A pod lost its GPU; for Carrel's own controller")
async def revoked(service: CurrentService, person: CurrentPerson, notice: RevokedNotice) -> NoticeRecorded:
    if not person.is_service:
        raise forbidden("Only Carrel's own components may report this", "Name its ServiceAccount by --service.")
    names = ("namespace", "pod", "node", "model")
    details = {name: value for name in names if (value := getattr(notice, name))}
    subject = normal(notice.person)
    entry = LogEntry(service.queries.now(), person.email, "revoked", subject, why=notice.why, details=details)
    return NoticeRecorded(is_new=await service.outbox.note(f"revoked-{notice.id}", entry))
