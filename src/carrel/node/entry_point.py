"""The commands `carrel agent`, one on each node, and `carrel withdraw`, for uninstalling."""

from carrel.node.settings import AgentSettings
from carrel.settings import ClusterSettings

__all__ = ["AgentSettings", "agent", "withdraw"]


def agent(settings: AgentSettings) -> None:
    """Report the GPUs of this node, and allocate them to containers for the kubelet.

    Every option may also be given as an environment variable, as shown beside it; an option wins.
    Without an NVIDIA driver it says so, reports no GPUs, and tries again.
    A file for --simulate has the word `gpus` and a list below it, each item with `model` and `memoryMiB`; it may
    have `count`, `perIsland` and `bandwidthGBps` (NVLink), and `unusable` with a reason. Edit it while the agent runs.

    Examples:

      carrel agent --node-name dgx-1

      carrel agent --node-name dgx-1 --mode coexist

      carrel agent --node-name dgx-1 --memory-resource node

      carrel agent --node-name laptop --simulate gpus.yaml
    """
    from carrel.node.run import run

    run(settings)


def withdraw(settings: ClusterSettings) -> None:
    """Remove from the Nodes what agents wrote there: the last step before Carrel's own kinds are deleted.

    Agents leave it when they end, because running pods need it. Delete their DaemonSet first: an agent that still runs
    writes everything again, and this command says so. Running pods continue.

    Examples:

      carrel withdraw

      carrel withdraw --context lab
    """
    from carrel.node.withdraw_command import withdraw_all

    withdraw_all(settings)
