"""`carrel simulate`. The work is done in `simulation_comparison`."""

from dataclasses import dataclass
from pathlib import Path

from carrel.option_fields import argument, option


@dataclass(frozen=True)
class SimulateSettings:
    trace: Path | None = argument(None, "The pods: openb's CSV, or Carrel's YAML or CSV.", show_default=False)
    nodes: Path | None = option(None, "The cluster: openb's CSV, or a YAML file as of carrel demo.")
    snapshot: Path | None = option(
        None, "Cluster, pods and bookings, as carrel snapshot writes them; instead of a trace.", "--from"
    )
    policies: str | None = option(
        None,
        "Policies to compare, joined by commas: first-fit, best-fit, random, spread, fgd, carrel, carrel-extender (sees"
        " a part of the nodes, as kube-scheduler asks), carrel-extender-gpu (and pods without a GPU use the default"
        " scheduler).",
    )
    """Without it: those that people know, side by side; where something is changed, Carrel's alone."""
    seeds: int | None = option(
        None, "How many orders of arrival are tried (with --arrival); 10 if not given.", min=1, max=1000
    )
    """By the clock there is one order."""
    arrival: float | None = option(
        None,
        "Pods come in random order until they ask for so many times the GPUs, and never leave; 0: they come, wait and"
        " end by the clock.",
        min=0,
    )
    """Of openb's traces 1.3, as in the FGD paper; of others 0. At most 1000."""
    add: str | None = option(None, "What if there were more GPUs: COUNTxMODEL:MIB; several are joined by commas.")
    """They are on nodes of their own, of up to eight GPUs, with enough CPU."""
    cooldown_days: float | None = option(None, "What if the cooldown were so long.", min=0)
    """At most ten years, as an admin may set it."""
    max_gpus: int | None = option(None, "What if a booking had at most so many GPUs; 0: no limit.", min=0, max=10_000)
    """As an admin may set it."""
    idle_hours: float | None = option(
        None, "What if idle GPUs came back after so many hours, when somebody waits (with --from).", min=0.5
    )
    """Before half an hour, no GPU is called idle. At most ten years."""
    csv: Path | None = option(None, "Write every run to this file.")
    svg: Path | None = option(None, "Draw the results into this file.")
    """Both are replaced at the end, in UTF-8: a run that breaks leaves the old ones."""
    processes: int = option(0, "How many at a time; 0: as many as there are cores.", min=0, max=1024)


def simulate(settings: SimulateSettings) -> None:
    """Place the pods of a trace on a cluster by several policies, and compare them.

    Ledger, scoring, booking rules and the choice of victims are those of the product. The same question has the same
    answer, on however many cores.

    Examples:

      carrel simulate openb_pod_list_default.csv --nodes openb_node_list_gpu_node.csv

      carrel simulate trace.yaml --nodes cluster.yaml --svg result.svg

      carrel snapshot > lab.json; carrel simulate --from lab.json --add 8xNVIDIA-A100-SXM4-80GB:81920

      carrel simulate --from lab.json --cooldown-days 7

      carrel simulate --from lab.json --max-gpus 2

      carrel simulate --from lab.json --idle-hours 4
    """
    from carrel.cli.simulation_comparison import compare

    compare(settings)
