"""MAIA's own addresses, for its webhook and its clients: its JSON, its token, its refusals.

The summary shows anybody how many GPUs no pod holds, as MAIA does, and who uses them only to callers with the token.
"""

import json
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from starlette.requests import Request

from carrel.bookings.api.models import is_writable
from carrel.bookings.people import How, Person, Role
from carrel.bookings.records import BookingRefusal, BookingRequest, RefusalReason, StoreUnavailable
from carrel.bookings.rules import FIRST_YEAR, LAST_YEAR
from carrel.bookings.service import CurrentService, OnlyWithBookings, ServiceParts
from carrel.dialects import carrel, maia, tier
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.ledger import Ledger
from carrel.ledger.shares import Share
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_user_name, normal
from carrel.parsing.fields import Field

CLIENT = Person("maia", "MAIA", frozenset({Role.LAB_ADMIN}), How.TOKEN)
"""A caller with the token may book for anybody, as with MAIA; the log names this client."""
REASON = "booked through MAIA"
MAX_NAME = 255
"""The length of the columns in MAIA's own tables."""

router = APIRouter(include_in_schema=False)


@router.post("/maia-api/gpu-schedulability/", dependencies=[OnlyWithBookings])
@router.post("/maia-api/gpu-schedulability", dependencies=[OnlyWithBookings])
@router.post("/maia/gpu-booking/gpu-schedulability/", dependencies=[OnlyWithBookings])
@router.post("/maia/gpu-booking/gpu-schedulability", dependencies=[OnlyWithBookings])
async def schedulability(service: CurrentService, request: Request) -> Response:
    """Has this person an active booking? Or, with a booking in the body: make one."""
    try:
        enquiry = maia.read_enquiry(Field.parse(await request.body(), "booking enquiry").value, service.queries.zone)
    except Malformed as malformed:
        return _answer(maia.not_booked([str(malformed)]), 400)
    names = (enquiry.user, enquiry.namespace, enquiry.wish.model if enquiry.wish else "")
    if not all(is_writable(name) and len(name) <= MAX_NAME for name in names):
        return _answer(maia.not_booked(["Short text without control characters is expected."]), 400)
    if enquiry.wish and not all(
        FIRST_YEAR <= time.year <= LAST_YEAR for time in (enquiry.wish.start, enquiry.wish.end)
    ):
        return _answer(maia.not_booked([f"A year between {FIRST_YEAR} and {LAST_YEAR} is expected."]), 400)
    # MAIA keeps any text as user_email, and its webhook asks with JupyterHub's user name, which in some labs is no
    # address. So MAIA's clients may book for such a name; spaces and the like only look like somebody else's name.
    if enquiry.wish and not is_user_name(normal(enquiry.user)):
        return _answer(maia.not_booked(["user_email must be an e-mail address or a user name."]), 400)
    if not service.knows_token(enquiry.token or _bearer(request)):
        return _answer(maia.not_booked(["The token is wrong."]), 403)
    try:
        if enquiry.wish is not None:
            return await _book(service, enquiry, enquiry.wish)
        booking = await service.queries.active_booking(enquiry.user, enquiry.namespace)
    except StoreUnavailable:
        return _answer(maia.not_booked(["The bookings cannot be read; try again in a minute."]), 503)
    verdict = maia.Verdict(True, booking.ends, booking.model) if booking else maia.Verdict(False)
    return _answer(maia.write_verdict(verdict))


@router.get("/maia-api/gpu-stats/")
@router.get("/maia-api/gpu-stats")
@router.get("/maia/resources/gpu_status_summary/")
@router.get("/maia/resources/gpu_status_summary")
async def summary(service: CurrentService, request: Request) -> Response:
    free = {each.model: each.gpus for each in await service.queries.free_gpus()}
    tenancies = _tenancies(service) if service.knows_token(_bearer(request)) else ()
    return _answer(maia.write_summary(maia.Summary(free, tuple(tenancies))))


async def _book(service: ServiceParts, enquiry: maia.Enquiry, wish: maia.Wish) -> Response:
    asked = BookingRequest(
        wish.model,
        wish.end,
        wish.start,
        user=enquiry.user,
        namespace=enquiry.namespace,
        reason=REASON,
        may_be_user_name=True,
    )
    outcome = await service.commands.create(asked, CLIENT)
    if isinstance(outcome, BookingRefusal):
        return _answer(maia.not_booked(outcome.messages), 503 if outcome.reason is RefusalReason.NOT_READY else 400)
    return _answer(maia.booked())


def _tenancies(service: ServiceParts) -> Iterable[maia.Tenancy]:
    """One per pod that holds GPUs."""
    view = service.cluster_view
    if view is None:
        return ()
    ledger, now = view.ledger, service.queries.now()

    def tenancy(pod: Pod) -> maia.Tenancy | None:
        shares = view.state.pod_facts.shares_of(pod)
        gpus = {share.gpu for share in shares}
        entry = ledger.entry(min(gpus)) if gpus else None
        if entry is None:
            return None
        try:
            until = tier.read_terminate_at(pod)
        except Malformed:
            until = None
        return maia.Tenancy(
            user=pod.metadata.annotations.get(carrel.USER, ""),
            node=entry.gpu.node,
            cluster="",
            namespace=pod.metadata.namespace,
            gpus=str(len(gpus)),
            model=entry.gpu.model,
            size=str(sum(_size(ledger, share) for share in shares)),
            expiration=until,
            expired=until is not None and not isinstance(until, tier.Revocable) and until <= now,
        )

    pods = {pod.metadata.uid: pod for pod in map(view.pod, ledger.holders()) if pod is not None}
    return view.isolation.found("tenancy", pods.values(), tenancy)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _size(ledger: Ledger, share: Share) -> int:
    entry = ledger.entry(share.gpu)
    return share.memory if share.memory is not None else entry.gpu.memory if entry else 0


def _answer(body: dict[str, Any], status: int = 200) -> Response:
    """With the same spaces as MAIA's own answers."""
    return Response(json.dumps(body), status, media_type="application/json")


def install_maia(app: FastAPI) -> None:
    app.include_router(router)
