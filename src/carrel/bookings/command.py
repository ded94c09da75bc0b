"""`carrel booking`: who books which cards, when: an API, pages, and MAIA's own addresses.

What is booked is in the database; what there is, in the cluster or in a file. With PostgreSQL any number of replicas
may run, and any of them may die.
"""

from carrel.bookings.settings import BookingSettings

__all__ = ["BookingSettings", "booking"]


def booking(settings: BookingSettings) -> None:
    """Book cards: the service with its API and its pages.

    Every option may also be given as an environment variable, as shown beside it; an option wins.

    Examples:

      carrel booking --inventory cards.yaml --dev

      carrel booking --zone Europe/Stockholm --database postgresql://carrel@db/carrel

      carrel booking --cooldown-days 7 --max-days 28 --shares-per-card 4
    """
    from carrel.bookings.run import run

    run(settings)
