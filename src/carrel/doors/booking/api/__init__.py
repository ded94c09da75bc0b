"""The API under /api/v1: bookings, the calendar, and the affairs of the lab."""

from fastapi import APIRouter, FastAPI

from carrel.doors.booking.api import affairs, bookings, calendar
from carrel.doors.booking.api.answers import DOCUMENTED, install_answers


def install_api(app: FastAPI) -> None:
    router = APIRouter(prefix="/api/v1", responses=DOCUMENTED)
    for part in (bookings, calendar, affairs):
        router.include_router(part.router)
    app.include_router(router)
    install_answers(app)
