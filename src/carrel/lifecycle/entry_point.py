"""`carrel controller`: does what no other component is called for. One replica leads; the others can take over.

It frees the GPUs of pods that are gone, writes the status of every GpuClaim, writes Events about why pods wait and
which GPUs they got, and wakes the scheduler when a pod that waited has room. It ends pods when their booking ends,
revokes GPUs for booked pods, and hands pods over to CPU. For MAIA's clients it is the pod terminator.
"""

from carrel.lifecycle.settings import ControllerSettings

__all__ = ["ControllerSettings", "controller"]


def controller(settings: ControllerSettings) -> None:
    """Free GPUs, end pods when their booking ends, revoke GPUs for booked pods, and write Events about it.

    Any number of replicas may run: one of them leads, and another takes over when it is gone.
    Every option may also be given as an environment variable, as shown beside it; an option wins.

    Examples:

      carrel controller

      carrel controller --adopt

      CARREL_TERMINATOR_TOKEN=… carrel controller --terminator-port 8080

      carrel controller --server http://127.0.0.1:8001 --port 0 --log-level debug
    """
    from carrel.lifecycle.run import run

    run(settings)
