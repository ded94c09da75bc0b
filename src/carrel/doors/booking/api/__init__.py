"""The API under /api/v1: bookings, the calendar, and the affairs of the lab."""

from fastapi import APIRouter, FastAPI

from carrel.doors.booking.api import affairs, bookings, calendar, notices
from carrel.doors.booking.api.answers import DOCUMENTED, install_answers

__all__ = ["DOCUMENTED", "install_api"]


def install_api(app: FastAPI) -> None:
    router = APIRouter(prefix="/api/v1")
    for part in (bookings, calendar, affairs, notices):
        router.include_router(part.router)
    app.include_router(router)
    install_answers(app)
