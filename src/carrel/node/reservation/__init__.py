"""`carrel reservation`: runs in a reservation pod, which holds one GPU for pods that share it.

It finds out which GPU the kubelet has allocated to its pod, writes that on the pod, and runs until a signal arrives.

    settings    the options
    run         finds the GPU, reports it, waits
"""

from carrel.node.reservation.settings import ReservationSettings

__all__ = ["ReservationSettings", "reservation"]


def reservation(settings: ReservationSettings) -> None:
    """Write on this pod which GPU it was given, and hold that GPU for the pods that share it.

    The controller creates the pods in which this runs; it need not be started by hand.
    A failure is logged, and tried again.

    Examples:

      carrel reservation

      carrel reservation --pod-name gpu-reservation-1 --pod-namespace kai-resource-reservation
    """
    from carrel.node.reservation.run import run

    run(settings)
