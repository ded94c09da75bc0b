"""`carrel simulate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.command_errors import USAGE, command_failed

if TYPE_CHECKING:
    from carrel.bookings.rules import BookingRules
    from carrel.simulation.engine import RunResult
    from carrel.simulation.over_time import TimedResult
    from carrel.simulation.workload import SimulatedCluster, Trace

DEFAULT_POLICIES = "random,first-fit,best-fit,spread,fgd,carrel"
OPENB_ARRIVAL = 1.3
FIRST_SEED = 42
"""As in the paper whose protocol it is."""


@dataclass(frozen=True)
class SimulateSettings:
    trace: Annotated[
        Path | None, typer.Argument(help="The pods: openb's CSV, or Carrel's YAML or CSV.", show_default=False)
    ] = None
    nodes: Annotated[Path | None, typer.Option(help="The cluster: openb's CSV, or a YAML file as of carrel demo.")] = (
        None
    )
    snapshot: Annotated[
        Path | None, typer.Option("--from", help="Cluster, pods and bookings, as carrel snapshot writes them.")
    ] = None
    policies: Annotated[
        str,
        typer.Option(
            help="Policies to compare, joined by commas: first-fit, best-fit, random, spread, fgd, carrel,"
            " carrel-extender (sees a part of the nodes, as kube-scheduler asks), carrel-extender-gpu (and pods without"
            " a GPU use the default scheduler)."
        ),
    ] = ""
    """Without it: those that people know, side by side; where something is changed, Carrel's alone."""
    seeds: Annotated[int, typer.Option(help="How many orders of arrival are tried.", min=1, max=1000)] = 10
    arrival: Annotated[
        float,
        typer.Option(
            help="Pods come in random order until they ask for so many times the GPUs, and never leave.", min=0
        ),
    ] = 0.0
    """Of openb's traces 1.3, as in the FGD paper; of others 0: pods come, wait and end by the clock."""
    add: Annotated[str, typer.Option(help="What if there were more GPUs: COUNTxMODEL:MIB.")] = ""
    cooldown_days: Annotated[float | None, typer.Option(help="What if the cooldown were so long.", min=0)] = None
    max_gpus: Annotated[
        int | None, typer.Option(help="What if a booking had at most so many GPUs; 0: no limit.", min=0)
    ] = None
    csv: Annotated[Path | None, typer.Option(help="Write every run to this file.")] = None
    svg: Annotated[Path | None, typer.Option(help="Draw the results into this file.")] = None
    processes: Annotated[int, typer.Option(help="How many at a time; 0: as many as there are cores.", min=0)] = 0


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
    """
    from carrel.parsing import Malformed

    try:
        _simulate(settings)
    except Malformed as malformed:
        raise command_failed("Cannot simulate", str(malformed), "carrel simulate --help", USAGE) from None
    except OSError as error:
        raise command_failed("A file cannot be used", str(error), "carrel simulate --help", USAGE) from None


def _simulate(settings: SimulateSettings) -> None:
    from carrel.cli.simulation_files import read_nodes, read_snapshot, read_trace
    from carrel.parsing import Malformed

    is_openb = False
    if settings.snapshot is not None:
        cluster, workload = read_snapshot(settings.snapshot)
    elif settings.trace is not None and settings.nodes is not None:
        cluster = read_nodes(settings.nodes)
        trace = read_trace(settings.trace)
        workload, is_openb = trace.workload, trace.is_openb
    else:
        why = "Give a trace and --nodes, or --from a snapshot."
        raise command_failed("Nothing to simulate", why, "carrel simulate --help", USAGE)
    if not cluster.gpus:
        raise Malformed((settings.snapshot or settings.nodes or Path()).name, "nodes", "no GPU", "at least one")
    arrival = settings.arrival or (OPENB_ARRIVAL if is_openb else 0.0)
    if arrival:
        _by_arrival(settings, cluster, workload, arrival)
    else:
        _over_time(settings, cluster, workload)


def _policies(settings: SimulateSettings, default: str) -> list[str]:
    from carrel.parsing import Malformed
    from carrel.simulation.policies import POLICIES

    names = [name.strip() for name in (settings.policies or default).split(",") if name.strip()]
    for name in names:
        if name not in POLICIES:
            raise Malformed("--policies", "a policy", name, f"one of {', '.join(POLICIES)}")
    return names


# --- in random order -------------------------------------------------------------------------------------------------


def _by_arrival(settings: SimulateSettings, cluster: "SimulatedCluster", workload: "Trace", arrival: float) -> None:
    from carrel.cli.added_gpus import added_gpus, with_more
    from carrel.cli.output import aligned, print_lines
    from carrel.cli.simulation_runs import run_all
    from carrel.simulation import results
    from carrel.simulation.engine import RunOptions

    cluster = with_more(cluster, added_gpus(settings.add)) if settings.add else cluster
    seeds = range(FIRST_SEED, FIRST_SEED + settings.seeds)
    jobs = [RunOptions(name, seed, arrival) for name in _policies(settings, DEFAULT_POLICIES) for seed in seeds]
    found = run_all(arrival_run, (cluster, workload.pods), jobs, settings.processes)
    print_lines(*aligned(results.arrival_rows(found)))
    _write_csv(settings.csv, results.arrival_csv(found))
    if settings.svg is not None:
        settings.svg.write_text(_arrival_svg(found))


def arrival_run(shared: Any, options: Any) -> "RunResult":
    from carrel.simulation.engine import run

    cluster, pods = shared
    return run(cluster, pods, options)


def _arrival_svg(found: "Sequence[RunResult]") -> str:
    from carrel.simulation import charts

    policies = list(dict.fromkeys(each.policy for each in found))
    first = {policy: next(each for each in found if each.policy == policy) for policy in policies}
    allocated = {name: [(at.arrived, at.allocated) for at in each.curve] for name, each in first.items()}
    fragmented = {name: [(at.arrived, at.fragmented) for at in each.curve] for name, each in first.items()}
    arrived = "arrived, % of all GPUs"
    return charts.document(
        [
            charts.chart(f"Allocated GPUs, seed {FIRST_SEED}", arrived, "% of all GPUs", allocated),
            charts.chart("Free, and of no use for usual requests", arrived, "% of all GPUs", fragmented),
        ]
    )


# --- by the clock ----------------------------------------------------------------------------------------------------


def _over_time(settings: SimulateSettings, cluster: "SimulatedCluster", workload: "Trace") -> None:
    from carrel.bookings.rules import BookingRules
    from carrel.cli.output import aligned, print_lines
    from carrel.cli.simulation_runs import run_all
    from carrel.simulation import results

    cases = [("as it is", cluster, BookingRules())]
    if changed := _changed(settings, cluster):
        cases.append(changed)
    policies = _policies(settings, DEFAULT_POLICIES if len(cases) == 1 else "carrel")
    jobs = [(case, policy) for case in range(len(cases)) for policy in policies]
    found = run_all(timed_run, (cases, workload), jobs, settings.processes)
    by_case = [
        (name, [result for (number, _), result in zip(jobs, found, strict=True) if number == case])
        for case, (name, *_) in enumerate(cases)
    ]
    rows = results.timed_rows(by_case)
    print_lines(*aligned(rows))
    if results.makes_no_difference(by_case):
        print_lines("The change makes no difference for these pods and bookings.")
    _write_csv(settings.csv, rows)
    if settings.svg is not None:
        settings.svg.write_text(_timed_svg(by_case))


def timed_run(shared: Any, job: tuple[int, str]) -> "TimedResult":
    from carrel.simulation.over_time import run_over_time

    cases, workload = shared
    number, policy = job
    _, cluster, rules = cases[number]
    return run_over_time(cluster, workload, policy, FIRST_SEED, rules)


def _changed(
    settings: SimulateSettings, cluster: "SimulatedCluster"
) -> "tuple[str, SimulatedCluster, BookingRules] | None":
    """The cluster and the rules with everything that the options change; None: they change nothing."""
    from dataclasses import replace
    from datetime import timedelta

    from carrel.bookings.rules import BookingRules
    from carrel.cli.added_gpus import added_gpus, with_more

    rules, words = BookingRules(), []
    if settings.add:
        cluster = with_more(cluster, added_gpus(settings.add))
        words.append(f"with {', '.join(map(str, added_gpus(settings.add)))}")
    if settings.cooldown_days is not None:
        rules = replace(rules, cooldown=timedelta(days=settings.cooldown_days))
        words.append(f"cooldown {settings.cooldown_days:g} d")
    if settings.max_gpus is not None:
        rules = replace(rules, max_gpus=settings.max_gpus)
        limit = f"at most {settings.max_gpus} GPU{'s' * (settings.max_gpus > 1)}"
        words.append(limit if settings.max_gpus else "no limit of GPUs")
    return (", ".join(words), cluster, rules) if words else None


def _timed_svg(by_case: "Sequence[tuple[str, Sequence[TimedResult]]]") -> str:
    from carrel.simulation import charts

    is_compared = len(by_case) > 1
    named = {
        f"{each.policy}, {case}" if is_compared else each.policy: each for case, results in by_case for each in results
    }
    used = {name: each.curve for name, each in named.items()}
    waited = {name: each.waited_hours for name, each in named.items()}
    return charts.document(
        [
            charts.chart("Allocated GPUs", "hours", "% of all GPUs", used),
            charts.bars("Waiting time of a pod, by reason", "hours, mean over all pods", waited),
        ]
    )


def _write_csv(file: Path | None, rows: Sequence[Sequence[str]]) -> None:
    import csv

    if file is not None:
        with file.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(rows)
