"""`carrel controller`: looks after what nobody asks for. One replica leads; the others are ready to take over.

It frees the cards of pods that are gone, writes on every GpuClaim how far it is, tells pods by Events why they wait and
what they got, and wakes the scheduler when a pod that waited has room. It ends pods when their booking does, takes
cards back for booked pods, and hands over to CPU; for MAIA's clients it is the pod terminator.
"""

from carrel.lifecycle.settings import ControllerSettings

__all__ = ["ControllerSettings", "controller"]


def controller(settings: ControllerSettings) -> None:
    """Free cards, end pods when their booking does, take cards back for booked pods, and tell people about it.

    Any number of replicas may run: one of them leads, and another takes over when it is gone.
    Every option may also be given as an environment variable, as shown beside it; an option wins.

    Examples:

      carrel controller

      carrel controller --schedulers gpu-scheduler,default-scheduler

      CARREL_TERMINATOR_TOKEN=… carrel controller --terminator-port 8080

      carrel controller --server http://127.0.0.1:8001 --port 0 --log-level debug
    """
    from carrel.lifecycle.run import run

    run(settings)
