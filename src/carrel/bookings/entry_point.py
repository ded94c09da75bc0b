"""`carrel booking`: the booking service, with its API, its pages and MAIA's addresses.

Bookings are in the database; which GPUs there are, in the cluster or in a file. With PostgreSQL any number of replicas
may run, and any of them may die.
"""

from carrel.bookings.settings import BookingSettings

__all__ = ["BookingSettings", "booking"]


def booking(settings: BookingSettings) -> None:
    """Run the booking service, with its API and its pages.

    Every option may also be given as an environment variable, as shown beside it; the option has precedence.

    Examples:

      carrel booking --inventory gpus.yaml --dev

      carrel booking --database postgresql://carrel@db/carrel

      carrel booking --inventory gpus.yaml --config carrel.yaml
    """
    from carrel.bookings.run import run

    run(settings)
