"""The commands `carrel agent`, one on each node, and `carrel withdraw`, for uninstalling; and two programs in pods."""

from carrel.node.settings import AgentSettings, ReservationSettings, VisibleGpusSettings
from carrel.settings import ContextSettings

__all__ = [
    "AgentSettings",
    "ReservationSettings",
    "VisibleGpusSettings",
    "agent",
    "reservation",
    "visible_gpus",
    "withdraw",
]


def agent(settings: AgentSettings) -> None:
    """Report the GPUs of this node, and allocate them to containers for the kubelet.

    Every option may also be given as an environment variable, as shown beside it; an option wins.
    Without an NVIDIA driver it says so, reports no GPUs, and tries again.
    A file for --simulate has the word `gpus` and a list below it, each item with `model` and `memoryMiB`; it may
    have `count`, `perIsland` and `bandwidthGBps` (NVLink), `keptMiB` for its driver, and `unusable` with a reason.
    Edit it while the agent runs.

    Examples:

      carrel agent --node-name dgx-1

      carrel agent --node-name dgx-1 --report-only

      carrel agent --node-name dgx-1 --simulate gpus.yaml --config carrel.yaml

      carrel agent --node-name laptop --simulate gpus.yaml
    """
    from carrel.node.run import run

    run(settings)


def withdraw(settings: ContextSettings) -> None:
    """Remove from the Nodes what agents wrote there: the last step before Carrel's own kinds are deleted.

    Agents leave it when they end, because running pods need it. Delete their DaemonSet first: an agent that still runs
    writes everything again, and this command says so. Running pods continue.

    Examples:

      carrel withdraw

      carrel withdraw --context lab
    """
    from carrel.node.withdrawal import withdraw_all

    withdraw_all(settings)


def reservation(settings: ReservationSettings) -> None:
    """Write on this pod which GPU it was given, and hold that GPU for the pods that share it.

    The controller creates the pods in which this runs; it need not be started by hand.
    A failure is logged, and tried again.

    Examples:

      carrel reservation

      carrel reservation --pod-name gpu-reservation-1 --pod-namespace kai-resource-reservation
    """
    from carrel.node.reservation import run

    run(settings)


def visible_gpus(settings: VisibleGpusSettings) -> None:
    """Print which GPUs this container sees, as one line of JSON: for `carrel doctor`, which runs it in pods.

    `variable` is what the environment says, `driver` the UUIDs that the driver shows, `files` the devices of GPUs.

    Examples:

      carrel visible-gpus

      carrel visible-gpus --write /dev/termination-log
    """
    from carrel.node.nvidia.visible_gpu import run

    run(settings)
