"""Whether a booking can ever cover what a pod asks for, and whether one that can starts soon."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from carrel.ledger.coverage import Entitlement
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import WHOLE, Request

SOON = timedelta(hours=1)
"""A pod that a booking will cover so soon waits for it, rather than running on CPU."""


def starts_soon(planned: Iterable[Entitlement], request: Request, now: datetime) -> Entitlement | None:
    """The first of a person's planned bookings that starts soon and can cover the request."""
    soon = (each for each in planned if each.start - now <= SOON)
    return next((each for each in soon if not why_never_covers(each, request)), None)


def why_never_covers(
    entitlement: Entitlement, request: Request, sizes: Collection[MiB] = (), *, is_known: bool = True
) -> str:
    """Why a booking can never cover a pod that asks for this, as the end of a sentence about the booking; empty if it
    can. `sizes` is the memory of the booked GPUs, where that is known. `is_known`: whether the request is; else only
    its model counts."""
    if entitlement.model and not request.allows_model(entitlement.model):
        return f"is not for {request.model or f'a GPU{request.selector}'}"
    if not is_known:
        return ""
    if request.gpus > entitlement.gpus:
        return f"is for fewer GPUs than this pod asks for ({request})"
    if entitlement.share_of > 1 and request.amount == WHOLE:
        return f"is for a part of a GPU, and this pod asks for {request}"
    if sizes and all(request.amount.on(memory) > memory // entitlement.share_of for memory in sizes):
        return f"is for GPUs with less memory than this pod asks for ({request})"
    return ""
