"""`carrel agent`: one on each node. It reports the node's cards, and hands them over to the kubelet. `carrel withdraw`:
what agents wrote on the Nodes is taken off.

If it is down, running pods go on and new ones wait: its last heartbeat grows old, and nobody is sent there.
"""

from carrel.node.settings import AgentSettings
from carrel.settings import ClusterSettings

__all__ = ["AgentSettings", "agent", "withdraw"]


def agent(settings: AgentSettings) -> None:
    """Report the cards of this node, and hand them over to the kubelet.

    Every option may also be given as an environment variable, as shown beside it; an option wins.
    Without an NVIDIA driver it says so, reports no cards, and looks again.
    A file for --simulate has the word `cards` and a list below it, each item with `model` and `memoryMiB`; it may
    have `count`, `perIsland` and `bandwidthGBps` (NVLink), and `unusable` with a reason. Edit it while the agent runs.

    Examples:

      carrel agent --node-name dgx-1

      carrel agent --node-name dgx-1 --mode coexist

      carrel agent --node-name dgx-1 --memory-resource node

      carrel agent --node-name laptop --simulate cards.yaml
    """
    from carrel.node.run import run

    run(settings)


def withdraw(settings: ClusterSettings) -> None:
    """Take off the Nodes what agents wrote there: the last step before Carrel's own kinds are deleted.

    Agents leave it when they end, because pods that run need it. Delete their DaemonSet first: an agent that still runs
    puts everything back, and this command says so. Pods that run go on.

    Examples:

      carrel withdraw

      carrel withdraw --context lab
    """
    from carrel.node.withdraw_command import withdraw_all

    withdraw_all(settings)
