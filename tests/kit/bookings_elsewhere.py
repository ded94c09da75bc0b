"""A booking service that is asked, such as MAIA's dashboard: it answers what the test says, or not at all."""

from datetime import datetime

from carrel.bookings.client import BookingStatus, NoAnswer, id_without_name

A100 = "NVIDIA-A100-SXM4-80GB"


class BookingsElsewhere:
    """Implements `bookings.client.BookingService`."""

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, str], BookingStatus] = {}
        """By person and namespace; an empty namespace: anywhere."""
        self.asked: list[tuple[str, str]] = []
        self.silent: set[str] = set()
        """People about whom it says nothing."""
        self.broken: set[str] = set()
        """People about whom a mistake of ours makes the question fail."""

    def book(self, person: str, ends: datetime | None, model: str = A100, namespace: str = "", gpus: int = 1) -> None:
        status = BookingStatus(ends, model, gpus, id_without_name(person, model)) if ends else BookingStatus()
        self.statuses[person, namespace] = status

    async def status(self, user: str, namespace: str) -> BookingStatus:
        self.asked.append((user, namespace))
        if user in self.silent:
            raise NoAnswer("it is down")
        if user in self.broken:
            raise ZeroDivisionError
        anywhere = self.statuses.get((user, ""), BookingStatus())
        return self.statuses.get((user, namespace), anywhere)
