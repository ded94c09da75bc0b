"""The API under /api/v1: bookings, the calendar, and the affairs of the lab."""

from fastapi import APIRouter, FastAPI

from carrel.bookings.api import administration, bookings, calendar, notices
from carrel.bookings.api.errors import DOCUMENTED, install_answers

__all__ = ["DOCUMENTED", "install_api"]


def install_api(app: FastAPI) -> None:
    router = APIRouter(prefix="/api/v1")
    for part in (bookings, calendar, administration, notices):
        router.include_router(part.router)
    app.include_router(router)
    install_answers(app)
