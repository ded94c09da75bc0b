"""`carrel simulate`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.command_errors import USAGE, command_failed

if TYPE_CHECKING:
    from carrel.bookings.rules import BookingRules
    from carrel.cli.simulation_files import TraceFile
    from carrel.cli.simulation_output import OutputFile
    from carrel.simulation.engine import RunOptions, RunResult
    from carrel.simulation.over_time import TimedResult
    from carrel.simulation.results import Rows
    from carrel.simulation.workload import SimulatedCluster, Trace

DEFAULT_POLICIES = "random,first-fit,best-fit,spread,fgd,carrel"
DEFAULT_SEEDS = 10
OPENB_ARRIVAL = 1.3
FIRST_SEED = 42
"""As in the paper whose protocol it is."""
MOST_ARRIVAL, MOST_COOLDOWN_DAYS = 1000, 3650
FAILED, INTERRUPTED = 1, 130
HELP = "carrel simulate --help"


@dataclass(frozen=True)
class SimulateSettings:
    trace: Annotated[
        Path | None, typer.Argument(help="The pods: openb's CSV, or Carrel's YAML or CSV.", show_default=False)
    ] = None
    nodes: Annotated[Path | None, typer.Option(help="The cluster: openb's CSV, or a YAML file as of carrel demo.")] = (
        None
    )
    snapshot: Annotated[
        Path | None,
        typer.Option("--from", help="Cluster, pods and bookings, as carrel snapshot writes them; instead of a trace."),
    ] = None
    policies: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, joined by commas: first-fit, best-fit, random, spread, fgd, carrel,"
            " carrel-extender (sees a part of the nodes, as kube-scheduler asks), carrel-extender-gpu (and pods without"
            " a GPU use the default scheduler)."
        ),
    ] = None
    """Without it: those that people know, side by side; where something is changed, Carrel's alone."""
    seeds: Annotated[
        int | None,
        typer.Option(help="How many orders of arrival are tried (with --arrival); 10 if not given.", min=1, max=1000),
    ] = None
    """By the clock there is one order."""
    arrival: Annotated[
        float | None,
        typer.Option(
            help="Pods come in random order until they ask for so many times the GPUs, and never leave; 0: they come,"
            " wait and end by the clock.",
            min=0,
        ),
    ] = None
    """Of openb's traces 1.3, as in the FGD paper; of others 0. At most 1000."""
    add: Annotated[
        str | None, typer.Option(help="What if there were more GPUs: COUNTxMODEL:MIB; several are joined by commas.")
    ] = None
    """They are on nodes of their own, of up to eight GPUs, with enough CPU."""
    cooldown_days: Annotated[float | None, typer.Option(help="What if the cooldown were so long.", min=0)] = None
    """At most ten years, as an admin may set it."""
    max_gpus: Annotated[
        int | None, typer.Option(help="What if a booking had at most so many GPUs; 0: no limit.", min=0, max=10_000)
    ] = None
    """As an admin may set it."""
    csv: Annotated[Path | None, typer.Option(help="Write every run to this file.")] = None
    svg: Annotated[Path | None, typer.Option(help="Draw the results into this file.")] = None
    """Both are replaced at the end, in UTF-8: a run that breaks leaves the old ones."""
    processes: Annotated[
        int, typer.Option(help="How many at a time; 0: as many as there are cores.", min=0, max=1024)
    ] = 0


@dataclass(frozen=True, slots=True)
class _Case:
    """The cluster and the rules as they are, or with something changed."""

    name: str
    cluster: "SimulatedCluster"
    rules: "BookingRules"


@dataclass(frozen=True, slots=True)
class _Comparison:
    table: "Rows"
    csv: "Rows"
    svg: Callable[[], str]
    remark: str = ""


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
    from carrel.cli.simulation_runs import WorkerEnded, terminated_by_exception
    from carrel.parsing import Malformed

    try:
        with terminated_by_exception():
            _simulate(settings)
    except Malformed as malformed:
        raise command_failed("Cannot simulate", str(malformed), HELP, USAGE) from None
    except BrokenPipeError:
        raise  # nobody reads what is printed; the files are written
    except OSError as error:
        raise command_failed("A file cannot be used", str(error), HELP, USAGE) from None
    except WorkerEnded as ended:
        why = f"{ended} Perhaps there is too little memory for so many at a time. No file was written."
        raise command_failed("The simulation is incomplete", why, "carrel simulate … --processes 1", FAILED) from None
    except KeyboardInterrupt:
        _say("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None


def _simulate(settings: SimulateSettings) -> None:
    from carrel.cli.simulation_output import output_problems

    cluster, trace = _read(settings)
    arrival = _arrival(settings, trace)
    if problems := _contradictions(settings, arrival):
        raise command_failed("These options do not go together", "\n".join(problems), HELP, USAGE)
    inputs = {"the trace": settings.trace, "--nodes": settings.nodes, "--from": settings.snapshot}
    outputs = _outputs(settings)
    if problems := output_problems(list(outputs), {name: file for name, file in inputs.items() if file is not None}):
        raise command_failed("The results cannot be written", "\n".join(problems), HELP, USAGE)
    cases = _cases(settings, cluster)
    policies = _policies(settings.policies, DEFAULT_POLICIES if len(cases) == 1 else "carrel")
    if arrival:
        seeds = settings.seeds or DEFAULT_SEEDS
        report = _by_arrival(cases, trace.workload, _Runs(policies, settings.processes, arrival, seeds))
    else:
        report = _over_time(cases, trace.workload, _Runs(policies, settings.processes))
    _show(report, outputs)


@dataclass(frozen=True, slots=True)
class _Runs:
    policies: Sequence[str]
    processes: int
    arrival: float = 0.0
    seeds: int = 1


# --- what is asked ---------------------------------------------------------------------------------------------------


def _read(settings: SimulateSettings) -> "tuple[SimulatedCluster, TraceFile]":
    from carrel.cli.simulation_files import TraceFile, read_nodes, read_snapshot, read_trace
    from carrel.parsing import Malformed

    if settings.snapshot is not None:
        if settings.trace is not None or settings.nodes is not None:
            what = "a trace" if settings.trace is not None else "--nodes"
            why = f"A snapshot (--from) has cluster, pods and bookings: {what} beside it would have no effect."
            raise command_failed("Two things to simulate", why, HELP, USAGE)
        cluster, workload = read_snapshot(settings.snapshot)
        trace = TraceFile(workload)
    elif settings.trace is not None and settings.nodes is not None:
        cluster, trace = read_nodes(settings.nodes), read_trace(settings.trace)
    else:
        raise command_failed("Nothing to simulate", "Give a trace and --nodes, or --from a snapshot.", HELP, USAGE)
    if not cluster.gpus:
        raise Malformed((settings.snapshot or settings.nodes or Path()).name, "nodes", "no GPU", "at least one")
    return cluster, trace


def _arrival(settings: SimulateSettings, trace: "TraceFile") -> float:
    """0: by the clock."""
    from carrel.parsing import Malformed

    if settings.arrival is None:
        return OPENB_ARRIVAL if trace.is_openb else 0.0
    if not 0 <= settings.arrival <= MOST_ARRIVAL:
        expected = f"0 to {MOST_ARRIVAL}: pods never leave, so more of them would only be dropped"
        raise Malformed("--arrival", "the value", settings.arrival, expected)
    if not settings.arrival and not trace.has_times and settings.trace is not None:
        expected = "creation_time and deletion_time, without which there is no clock; or another --arrival"
        raise Malformed(settings.trace.name, "the header", "without times", expected)
    return settings.arrival


def _contradictions(settings: SimulateSettings, arrival: float) -> list[str]:
    """Options that would have no effect, a sentence each."""
    if not arrival:
        why = "--seeds: pods come by the clock here, in one order only. It needs --arrival."
        return [why] if settings.seeds is not None else []
    given = {"--cooldown-days": settings.cooldown_days, "--max-gpus": settings.max_gpus}
    return [
        f"{option}: pods come in random order here, without bookings. It needs --arrival 0."
        for option, value in given.items()
        if value is not None
    ]


def _policies(given: str | None, default: str) -> list[str]:
    from carrel.parsing import Malformed
    from carrel.simulation.policies import POLICIES

    text = default if given is None else given
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names or [text]:
        if name not in POLICIES:
            raise Malformed("--policies", "a policy", name, f"one of {', '.join(POLICIES)}")
    return names


def _cases(settings: SimulateSettings, cluster: "SimulatedCluster") -> list[_Case]:
    """As it is and, if the options change something, with all of it."""
    from dataclasses import replace
    from datetime import timedelta

    from carrel.bookings.rules import BookingRules
    from carrel.cli.added_gpus import added_gpus, unknown_models, with_more
    from carrel.parsing import Malformed

    # Whatever people have booked is granted, also where the admin allows more GPUs than by default.
    rules, words = replace(BookingRules(), max_gpus=0), []
    cases = [_Case("as it is", cluster, rules)]
    if settings.add is not None:
        groups = added_gpus(settings.add)
        if remark := unknown_models(cluster, groups):
            _say(remark)
        cluster = with_more(cluster, groups)
        words.append(f"with {', '.join(map(str, groups))}")
    if settings.cooldown_days is not None:
        if not 0 <= settings.cooldown_days <= MOST_COOLDOWN_DAYS:
            expected = f"0 to {MOST_COOLDOWN_DAYS}, as an admin may set it"
            raise Malformed("--cooldown-days", "the value", settings.cooldown_days, expected)
        rules = replace(rules, cooldown=timedelta(days=settings.cooldown_days))
        words.append(f"cooldown {settings.cooldown_days:g} d")
    if settings.max_gpus is not None:
        rules = replace(rules, max_gpus=settings.max_gpus)
        limit = f"at most {settings.max_gpus} GPU{'s' * (settings.max_gpus > 1)}"
        words.append(limit if settings.max_gpus else "no limit of GPUs")
    return [*cases, _Case(", ".join(words), cluster, rules)] if words else cases


# --- in random order -------------------------------------------------------------------------------------------------


def _by_arrival(cases: Sequence[_Case], workload: "Trace", runs: _Runs) -> _Comparison:
    from carrel.cli.simulation_runs import run_all
    from carrel.simulation import results
    from carrel.simulation.engine import RunOptions

    _check_arrivals(cases[0].cluster, workload, runs.arrival)
    if workload.wishes:
        _say(f"With --arrival, bookings are left out: {len(workload.wishes)} here.")
    seeds = range(FIRST_SEED, FIRST_SEED + runs.seeds)
    jobs = [
        (number, RunOptions(policy, seed, runs.arrival))
        for number in range(len(cases))
        for policy in runs.policies
        for seed in seeds
    ]
    found = run_all(arrival_run, (cases, workload.pods), jobs, runs.processes)
    by_case = _by_case(cases, jobs, found)
    return _Comparison(results.arrival_rows(by_case), results.arrival_csv(by_case), lambda: _arrival_svg(by_case))


def _check_arrivals(cluster: "SimulatedCluster", workload: "Trace", arrival: float) -> None:
    from carrel.parsing import Malformed
    from carrel.simulation.arrivals import MOST_ARRIVALS, expected_arrivals
    from carrel.simulation.engine import largest_memory

    if not workload.pods:
        raise Malformed("--arrival", "the trace", "without a pod", "at least one pod")
    expected = expected_arrivals(workload.pods, arrival * cluster.gpus, largest_memory(cluster))
    if expected > MOST_ARRIVALS:
        why = f"at most {MOST_ARRIVALS:,} pods in a run; these ask for so little that about {expected:,.0f} would come"
        raise Malformed("--arrival", "the value", arrival, why)


def arrival_run(shared: Any, job: "tuple[int, RunOptions]") -> "RunResult":
    from carrel.simulation.engine import run

    cases, pods = shared
    number, options = job
    return run(cases[number].cluster, pods, options, measured_by=cases[0].cluster)


def _arrival_svg(by_case: "Sequence[tuple[str, Sequence[RunResult]]]") -> str:
    from carrel.simulation import charts

    first = _named([(case, [each for each in found if each.seed == FIRST_SEED]) for case, found in by_case])
    allocated = {name: [(at.arrived, at.allocated) for at in each.curve] for name, each in first.items()}
    fragmented = {name: [(at.arrived, at.fragmented) for at in each.curve] for name, each in first.items()}
    arrived = "arrived, % of all GPUs" + (" as it is" if len(by_case) > 1 else "")
    how = charts.Curves(len(first) // len(by_case))
    return charts.document(
        [
            charts.chart(f"Allocated GPUs, seed {FIRST_SEED}", arrived, "% of all GPUs", allocated, how),
            charts.chart("Free, and of no use for usual requests", arrived, "% of all GPUs", fragmented, how),
        ]
    )


# --- by the clock ----------------------------------------------------------------------------------------------------


def _over_time(cases: Sequence[_Case], workload: "Trace", runs: _Runs) -> _Comparison:
    from carrel.cli.simulation_runs import run_all
    from carrel.simulation import results

    jobs = [(number, policy) for number in range(len(cases)) for policy in runs.policies]
    by_case = _by_case(cases, jobs, run_all(timed_run, (cases, workload), jobs, runs.processes))
    rows = results.timed_rows(by_case)
    is_same = results.makes_no_difference(by_case)
    remark = "The change makes no difference for these pods and bookings." if is_same else ""
    return _Comparison(rows, rows, lambda: _timed_svg(by_case), remark)


def timed_run(shared: Any, job: tuple[int, str]) -> "TimedResult":
    from carrel.simulation.over_time import run_over_time

    cases, workload = shared
    number, policy = job
    return run_over_time(cases[number].cluster, workload, policy, FIRST_SEED, cases[number].rules)


def _timed_svg(by_case: "Sequence[tuple[str, Sequence[TimedResult]]]") -> str:
    from carrel.simulation import charts

    named = _named(by_case)
    used = {name: each.curve for name, each in named.items()}
    waited = {name: each.waited_hours for name, each in named.items()}
    how = charts.Curves(len(named) // len(by_case), are_steps=True)
    return charts.document(
        [
            charts.chart("Allocated GPUs", "hours", "% of all GPUs", used, how),
            charts.bars("Waiting time of a pod, by reason", "hours, mean over all pods", waited),
        ]
    )


# --- the results -----------------------------------------------------------------------------------------------------


def _by_case(
    cases: Sequence[_Case], jobs: Sequence[tuple[int, Any]], found: Sequence[Any]
) -> list[tuple[str, list[Any]]]:
    pairs = list(zip(jobs, found, strict=True))
    return [(each.name, [result for (case, _), result in pairs if case == number]) for number, each in enumerate(cases)]


def _named(by_case: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, Any]:
    """By policy and, if there are several cases, by case."""
    return {
        f"{each.policy}, {case}" if len(by_case) > 1 else each.policy: each for case, found in by_case for each in found
    }


def _outputs(settings: SimulateSettings) -> "dict[OutputFile, Callable[[_Comparison], str]]":
    """The files that are asked for, and what is written to each."""
    from carrel.cli.simulation_output import OutputFile

    given = {
        "--csv": (settings.csv, lambda report: _csv_text(report.csv)),
        "--svg": (settings.svg, lambda report: report.svg()),
    }
    return {OutputFile(option, file): text for option, (file, text) in given.items() if file is not None}


def _csv_text(rows: "Rows") -> str:
    import csv
    import io

    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(rows)
    return lines.getvalue()


def _show(report: _Comparison, outputs: "dict[OutputFile, Callable[[_Comparison], str]]") -> None:
    """Files first: whoever reads the table may have gone. The table in any case: a disk may have become full."""
    from carrel.cli.output import aligned, print_lines

    failures = []
    for file, text in outputs.items():
        try:
            file.write(text(report))
        except OSError as error:
            failures.append(f"{file.option}: {error}")
    print_lines(*aligned(report.table), *([report.remark] if report.remark else []))
    if failures:
        raise command_failed("Not all results are written", "\n".join(failures), HELP, FAILED)


def _say(sentence: str) -> None:
    """On stderr, if somebody reads it."""
    from contextlib import suppress

    from carrel.cli.output import print_lines

    with suppress(OSError):
        print_lines(sentence, err=True)
