"""`carrel top`: what all GPUs do, live on the terminal."""

from dataclasses import dataclass

from carrel.cli.options import ClusterQuerySettings
from carrel.ids import NO_NODE, NodeName
from carrel.option_fields import option


@dataclass(frozen=True)
class TopSettings(ClusterQuerySettings):
    node: NodeName = option(NO_NODE, "Only this node.")
    model: str = option("", "Only GPUs of this model; a part of its name is enough.")
    user: str = option("", "Only GPUs that this person holds; a part of the name is enough.")
    once: bool = option(False, "Print a table and end, as without a terminal.", "--once")


def top(settings: TopSettings) -> None:
    """Show what all GPUs do, live: how busy each is, its memory, power and temperature, who holds it, and since when it
    is idle.

    Keys: n, u, m, w, t and i sort by node, utilisation, memory, power, temperature, and by who is idle longest; a shows
    all GPUs, or the held, idle or free ones; / filters by the words that you type; q ends it.

    Examples:

      carrel top

      carrel top --model a100

      carrel top --once -o json
    """
    from carrel.cli.top_screen import show_top

    show_top(settings)
