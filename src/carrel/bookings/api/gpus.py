"""/api/v1/gpus: the cluster map for programs, with what GPUs are used for."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from carrel.bookings.api.models import Moment, ResponseModel, Word
from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.people import Person
from carrel.bookings.service import CurrentService
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.dialects.tier import person_of
from carrel.http.problems import Problem
from carrel.ids import HolderId
from carrel.ledger.gpu_activity import ActivityState, GpuActivity, UnknownWhy
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.shares import ShareState
from carrel.ledger.tiers import Tier

router = APIRouter(tags=["status"])

MOST_NODES = 200


class ActivityOut(ResponseModel):
    """What a GPU is used for. Everybody sees the state; figures see those who hold the GPU, and lab admins."""

    state: Annotated[
        ActivityState,
        Field(
            description="`active`: it has computed within half an hour; `idle`: it has not; `new`: it is held for less"
            " than that, and has not computed yet; `unknown`: nobody can say."
        ),
    ]
    idle_since: Annotated[Moment | None, Field(description="Null: it is not idle.")]
    why_unknown: Annotated[UnknownWhy | None, Field(description="Null: it is not unknown.")]
    active_part: Annotated[
        float | None,
        Field(description="The part of the time since `active_part_since` in which it was active. Null: unknown."),
    ]
    active_part_since: Annotated[Moment | None, Field(description="At most an hour ago.")]


class GpuActivityOut(ActivityOut):
    utilisation_percent: Annotated[int | None, Field(description="In the last sample. Null: unknown.")]
    used_mib: Annotated[int | None, Field(description="Memory in use, as the GPU says. Null: unknown.")]
    power_watts: int | None
    temperature_celsius: int | None


class HolderOut(ResponseModel):
    pod: Annotated[str, Field(description="As namespace/name.", examples=["lab/train-7"])]
    person: Annotated[str, Field(description="Empty: nobody's.")]
    tier: Annotated[Tier | None, Field(description="Null: it keeps its GPU without a booking.")]
    held_mib: int
    whole: Annotated[bool, Field(description="It holds the whole GPU.")]
    state: Annotated[ShareState, Field(description="How far its share is.")]
    activity: Annotated[ActivityOut, Field(description="Of this pod: unknown if others share a GPU that is not idle.")]


class GpuOut(ResponseModel):
    node: str
    index: int
    uuid: str
    model: str
    memory_mib: int
    free_mib: Annotated[int, Field(description="Held by no pod.")]
    why_unusable: Annotated[str, Field(description="Why it takes no new pods; empty: it does.")]
    kept_for: Annotated[str, Field(description="The booked pod that it is kept for; empty: none.")]
    holders: list[HolderOut]
    activity: Annotated[GpuActivityOut | None, Field(description="By all its pods together. Null: no pod holds it.")]


class GpusOut(ResponseModel):
    items: list[GpuOut]
    more_nodes: Annotated[int, Field(description="So many nodes are left out: name a part of their names.")]


@router.get("/gpus", summary="Each GPU: who holds it, and whether it is active or idle")
async def gpus(
    service: CurrentService,
    person: CurrentPerson,
    node: Annotated[Word, Query(description="Only nodes whose name contains this.")] = "",
) -> GpusOut:
    view = service.cluster_view
    if view is None:
        why = "Its GPUs are those of a file, so it knows no pods."
        raise Problem(404, "no-cluster", "This booking service has no cluster", why, "carrel free")
    names = sorted(name for name in view.ledger.nodes if node in name)
    items = []
    for name in names[:MOST_NODES]:
        there = view.ledger.node(name)
        closed = there.out_of_use if there is not None else ""
        items += [_gpu_out(view, person, entry, closed) for entry in view.entries(name)]
    return GpusOut(items=items, more_nodes=len(names[MOST_NODES:]))


def _gpu_out(view: ClusterView, person: Person, entry: GpuEntry, closed: str) -> GpuOut:
    gpu, activity = entry.gpu, view.activity(entry, person)
    return GpuOut(
        node=gpu.node,
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        memory_mib=int(gpu.memory),
        free_mib=max(entry.free, 0),
        why_unusable=gpu.unusable or closed,
        kept_for=str(entry.kept_for or ""),
        holders=[_holder_out(view, person, entry, uid) for uid in sorted(entry.shares)],
        activity=_gpu_activity_out(activity) if activity is not None else None,
    )


def _holder_out(view: ClusterView, person: Person, entry: GpuEntry, uid: HolderId) -> HolderOut:
    share, pod = entry.shares[uid], view.pod(uid)
    activity = view.activity(entry, person, uid)
    assert activity is not None, "it holds a part of the GPU"
    return HolderOut(
        pod=view.state.holders.described(share.holder),
        person=person_of(pod) if pod is not None else "",
        tier=view.isolation.ask("page", pod, view.state.covered_pods.tier, None) if pod is not None else None,
        held_mib=entry.held(share),
        whole=share.memory is None,
        state=share.state,
        activity=activity_out(activity),
    )


def activity_out(activity: GpuActivity) -> ActivityOut:
    return ActivityOut.model_validate(_use(activity))


def _gpu_activity_out(activity: GpuActivity) -> GpuActivityOut:
    latest = activity.latest
    return GpuActivityOut.model_validate(
        {
            **_use(activity),
            "utilisation_percent": round(100 * latest.utilisation) if latest.utilisation is not None else None,
            "used_mib": latest.used,
            "power_watts": round(latest.power_watts) if latest.power_watts is not None else None,
            "temperature_celsius": latest.temperature_celsius,
        }
    )


def _use(activity: GpuActivity) -> dict[str, object]:
    recent = activity.recent
    return {
        "state": activity.state,
        "idle_since": activity.since if activity.is_idle else None,
        "why_unknown": activity.why,
        "active_part": round(recent.part, 3) if recent is not None else None,
        "active_part_since": recent.since if recent is not None else None,
    }
