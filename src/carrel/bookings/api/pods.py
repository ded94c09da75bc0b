"""/api/v1/pods: your own pods, for people who may not read the cluster: in a notebook, `carrel why` asks here."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from carrel.bookings.pod_rows import PodRow, pod_rows
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.bookings.startable import words_with_zone
from carrel.http.problems import Problem

router = APIRouter(prefix="/pods", tags=["status"])


class PodOut(BaseModel):
    model_config = ConfigDict(frozen=True)

    pod: Annotated[str, Field(description="As namespace/name.", examples=["lab/train-7"])]
    waits: Annotated[bool, Field(description="For a GPU.")]
    why: Annotated[str, Field(description="What it waits for, or what it holds.")]
    booking: Annotated[str, Field(description="Which booking covers it, or what it means that none does.")]
    held_by: Annotated[list[str], Field(description="Of a pod that waits: who holds what would do, and until when.")]


class PodsOut(BaseModel):
    items: list[PodOut]


@router.get("", summary="Your pods: why they wait, and which booking covers them")
async def pods(service: CurrentService, person: CurrentPerson) -> PodsOut:
    if service.cluster_view is None:
        why = "Its GPUs are those of a file, so it knows no pods."
        raise Problem(404, "no-cluster", "This booking service has no cluster", why, "carrel list")
    rows = pod_rows(service.cluster_view, person.email, words_with_zone(service.queries.zone))
    return PodsOut(items=[_pod_out(row) for row in rows])


def _pod_out(row: PodRow) -> PodOut:
    holds = f"{row.name} does not wait: it has {row.gpus}" if row.gpus else f"{row.name} does not wait for a GPU"
    more = [f"and {row.more_holders} more"] if row.more_holders else []
    return PodOut(
        pod=row.name,
        waits=bool(row.why_waits),
        why=row.why_waits or holds,
        booking=row.coverage,
        held_by=[*row.holders, *more],
    )
