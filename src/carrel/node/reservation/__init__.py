"""`carrel reservation`: runs in a reservation pod, which holds one card for others.

It finds out which card the kubelet has given to its pod, writes that on the pod, and stays until it is told to go.
"""

from carrel.node.reservation.settings import ReservationSettings

__all__ = ["ReservationSettings", "reservation"]


def reservation(settings: ReservationSettings) -> None:
    """Say on this pod which card it was given, and hold that card for others.

    The controller makes the pods in which this runs; nobody needs to start it by hand.
    What goes wrong is told, and tried again.

    Examples:

      carrel reservation

      carrel reservation --pod-name gpu-reservation-1 --pod-namespace kai-resource-reservation
    """
    from carrel.node.reservation.run import run

    run(settings)
