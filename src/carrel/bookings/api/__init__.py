"""The HTTP API under /api/v1.

Reading order:

    models           the JSON of requests and answers
    errors           refusals as RFC 9457 problems
    bookings         list, search, create, preview, change, cancel
    availability         models, availability, rules, the iCalendar feed
    administration   maintenance, usage, the audit log; who is in a group, and who books for it
    gpus             the cluster map: who holds which GPU, and what it is used for
    startable        what a person may start now, which a hub asks too; a person's own pods, and their booking now
    messages         by which channels a person is told, and of what
    maia             MAIA's own addresses
"""

from functools import cache

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from carrel.bookings.api import administration, availability, bookings, gpus, messages, startable
from carrel.bookings.api.errors import DOCUMENTED, install_answers

__all__ = ["DOCUMENTED", "install_api"]


def install_api(app: FastAPI) -> None:
    app.router.routes.extend(_routes())
    install_answers(app)


@cache
def _routes() -> list[BaseRoute]:
    """Made once in a process: they need no service until they are called, and to make their models takes longer than
    all the rest of an app. Tests make hundreds of apps."""
    parts, api = APIRouter(), APIRouter(responses=DOCUMENTED)
    for part in (bookings, availability, administration, gpus, messages, startable):
        parts.include_router(part.router)
    parts.include_router(administration.groups_router)
    parts.include_router(administration.people_router)
    api.include_router(parts, prefix="/api/v1")
    return api.routes
