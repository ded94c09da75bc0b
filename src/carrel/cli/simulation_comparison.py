"""Runs what `carrel simulate` asks for: which cases and policies are compared, and what is shown of them.

A case may have GPUs that the cluster does not have yet, as `--add` names them.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import typer

from carrel.cli.output import aligned, print_lines
from carrel.cli.simulate import SimulateSettings
from carrel.cli.simulation_files import TraceFile, read_nodes, read_snapshot, read_trace
from carrel.cli.simulation_output import OutputFile, output_problems
from carrel.cli.simulation_runs import WorkerEnded, run_all, terminated_by_exception
from carrel.command_errors import USAGE, command_failed
from carrel.configuration.schema import BookingRules
from carrel.ids import NodeName
from carrel.ledger.gpus import Gpu, MiB, Node, place_name
from carrel.parsing import Malformed
from carrel.simulation import charts, results
from carrel.simulation.engine import MOST_ARRIVALS, RunOptions, RunResult, expected_arrivals, largest_memory, run
from carrel.simulation.over_time import TimedResult, run_over_time
from carrel.simulation.policies import POLICIES
from carrel.simulation.results import Rows
from carrel.simulation.workload import HOUR_S, SimulatedCluster, Trace

DEFAULT_POLICIES = "random,first-fit,best-fit,spread,fgd,carrel"
DEFAULT_SEEDS = 10
OPENB_ARRIVAL = 1.3
FIRST_SEED = 42
"""As in the paper whose protocol it is."""
MOST_ARRIVAL, MOST_COOLDOWN_DAYS = 1000, 3650
LEAST_IDLE_HOURS, MOST_IDLE_HOURS = 0.5, MOST_COOLDOWN_DAYS * 24
FAILED, INTERRUPTED = 1, 130
HELP = "carrel simulate --help"


@dataclass(frozen=True, slots=True)
class _Case:
    """The cluster and the rules as they are, or with something changed."""

    name: str
    cluster: SimulatedCluster
    rules: BookingRules
    idle_after_s: float = math.inf
    """After how long idle GPUs come back."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    table: Rows
    csv: Rows
    svg: Callable[[], str]
    remark: str = ""


def compare(settings: SimulateSettings) -> None:
    """Run the simulations and show the result. The command ends with the reason where that is not possible."""
    try:
        with terminated_by_exception():
            _simulate(settings)
    except Malformed as malformed:
        raise command_failed("Cannot simulate", str(malformed), HELP, USAGE) from None
    except BrokenPipeError:
        raise  # nobody reads what is printed; the files are written
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise command_failed("A file cannot be used", why, HELP, USAGE) from None
    except WorkerEnded as ended:
        why = f"{ended} Perhaps there is too little memory for so many at a time. No file was written."
        raise command_failed("The simulation is incomplete", why, "carrel simulate … --processes 1", FAILED) from None
    except KeyboardInterrupt:
        _say("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None


def _simulate(settings: SimulateSettings) -> None:
    cluster, trace = _read(settings)
    arrival = _arrival(settings, trace)
    if problems := _contradictions(settings, arrival):
        raise command_failed("These options do not go together", "\n".join(problems), HELP, USAGE)
    inputs = {"the trace": settings.trace, "--nodes": settings.nodes, "--from": settings.snapshot}
    outputs = _outputs(settings)
    if problems := output_problems(list(outputs), {name: file for name, file in inputs.items() if file is not None}):
        raise command_failed("The results cannot be written", "\n".join(problems), HELP, USAGE)
    cases = _cases(settings, cluster)
    if settings.idle_hours is not None:
        _say_what_is_known(trace.workload)
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


def _read(settings: SimulateSettings) -> tuple[SimulatedCluster, TraceFile]:
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


def _arrival(settings: SimulateSettings, trace: TraceFile) -> float:
    """0: by the clock."""
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
    why = []
    if settings.idle_hours is not None and settings.snapshot is None:
        why.append("--idle-hours: a trace does not say which pods use their GPUs. It needs a snapshot (--from).")
    if not arrival:
        seeds = "--seeds: pods come by the clock here, in one order only. It needs --arrival."
        return why + [seeds] * (settings.seeds is not None)
    given = {"--cooldown-days": settings.cooldown_days, "--max-gpus": settings.max_gpus}
    given |= {"--idle-hours": settings.idle_hours} if settings.snapshot is not None else {}
    return why + [
        f"{option}: pods come in random order here, without bookings. It needs --arrival 0."
        for option, value in given.items()
        if value is not None
    ]


def _policies(given: str | None, default: str) -> list[str]:
    text = default if given is None else given
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names or [text]:
        if name not in POLICIES:
            raise Malformed("--policies", "a policy", name, f"one of {', '.join(POLICIES)}")
    return names


def _cases(settings: SimulateSettings, cluster: SimulatedCluster) -> list[_Case]:
    """As it is and, if the options change something, with all of it."""
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
    idle_after_s = _idle_after_s(settings)
    if idle_after_s < math.inf:
        words.append(f"idle GPUs back after {settings.idle_hours:g} h")
    return [*cases, _Case(", ".join(words), cluster, rules, idle_after_s)] if words else cases


def _idle_after_s(settings: SimulateSettings) -> float:
    if settings.idle_hours is None:
        return math.inf
    if not LEAST_IDLE_HOURS <= settings.idle_hours <= MOST_IDLE_HOURS:
        expected = f"{LEAST_IDLE_HOURS} to {MOST_IDLE_HOURS}: after half an hour a GPU is called idle"
        raise Malformed("--idle-hours", "the value", settings.idle_hours, expected)
    return settings.idle_hours * HOUR_S


def _say_what_is_known(workload: Trace) -> None:
    """What a run with idle GPUs cannot know, on stderr."""
    holding = [pod for pod in workload.pods if pod.held]
    unknown = sum(pod.idle_s is None for pod in holding)
    if unknown:
        _say(f"{unknown} of {len(holding)} pods with GPUs keep them: nobody knows whether they are idle.")
    past = {(each.person, each.model) for each in workload.past_use}
    if unknown < len(holding) and not past:
        _say("The snapshot has no past use: pods that are idle stay so, and the others are never idle.")


# --- in random order -------------------------------------------------------------------------------------------------


def _by_arrival(cases: Sequence[_Case], workload: Trace, runs: _Runs) -> _Comparison:
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


def _check_arrivals(cluster: SimulatedCluster, workload: Trace, arrival: float) -> None:
    if not workload.pods:
        raise Malformed("--arrival", "the trace", "without a pod", "at least one pod")
    expected = expected_arrivals(workload.pods, arrival * cluster.gpus, largest_memory(cluster))
    if expected > MOST_ARRIVALS:
        why = f"at most {MOST_ARRIVALS:,} pods in a run; these ask for so little that about {expected:,.0f} would come"
        raise Malformed("--arrival", "the value", arrival, why)


def arrival_run(shared: Any, job: tuple[int, RunOptions]) -> RunResult:
    cases, pods = shared
    number, options = job
    return run(cases[number].cluster, pods, options, measured_by=cases[0].cluster)


def _arrival_svg(by_case: Sequence[tuple[str, Sequence[RunResult]]]) -> str:
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


def _over_time(cases: Sequence[_Case], workload: Trace, runs: _Runs) -> _Comparison:
    jobs = [(number, policy) for number in range(len(cases)) for policy in runs.policies]
    by_case = _by_case(cases, jobs, run_all(timed_run, (cases, workload), jobs, runs.processes))
    rows = results.timed_rows(by_case, with_idle=cases[-1].idle_after_s < math.inf)
    is_same = results.makes_no_difference(by_case)
    remark = "The change makes no difference for these pods and bookings." if is_same else ""
    return _Comparison(rows, rows, lambda: _timed_svg(by_case), remark)


def timed_run(shared: Any, job: tuple[int, str]) -> TimedResult:
    cases, workload = shared
    number, policy = job
    case = cases[number]
    return run_over_time(case.cluster, workload, policy, FIRST_SEED, case.rules, case.idle_after_s)


def _timed_svg(by_case: Sequence[tuple[str, Sequence[TimedResult]]]) -> str:
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


def _outputs(settings: SimulateSettings) -> dict[OutputFile, Callable[[_Comparison], str]]:
    """The files that are asked for, and what is written to each."""
    given = {
        "--csv": (settings.csv, lambda report: _csv_text(report.csv)),
        "--svg": (settings.svg, lambda report: report.svg()),
    }
    return {OutputFile(option, file): text for option, (file, text) in given.items() if file is not None}


def _csv_text(rows: Rows) -> str:
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(rows)
    return lines.getvalue()


def _show(report: _Comparison, outputs: dict[OutputFile, Callable[[_Comparison], str]]) -> None:
    """Files first: whoever reads the table may have gone. The table in any case: a disk may have become full."""
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
    with suppress(OSError):
        print_lines(sentence, err=True)


MOST_ADDED = 10_000
"""In all. The largest clusters that are simulated have about as many."""
MOST_MIB = 16 * 1024 * 1024
"""Of a GPU, as in a cluster's file."""
GPUS_OF_A_NODE = 8

_GROUP = re.compile(r"([0-9]{1,9})x([^:,]+):([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class AddedGpus:
    """So many GPUs of one kind."""

    count: int
    model: str
    memory: MiB

    def __str__(self) -> str:
        return f"{self.count}x{self.model}:{self.memory}"


def added_gpus(text: str) -> list[AddedGpus]:
    """`8xNVIDIA-A100-SXM4-80GB:81920,2xTesla-T4:16276`. Raises `Malformed`."""
    groups = [_group(part.strip()) for part in text.split(",")]
    if sum(group.count for group in groups) > MOST_ADDED:
        raise Malformed("--add", "the value", text, f"at most {MOST_ADDED:,} GPUs in all")
    return groups


def _group(text: str) -> AddedGpus:
    found = _GROUP.fullmatch(text)
    if found is None or not text.isprintable():
        expected = "COUNTxMODEL:MIB, as 8xNVIDIA-A100-SXM4-80GB:81920; several are joined by commas"
        raise Malformed("--add", "the value", text, expected)
    number, model, memory = int(found[1]), found[2].strip(), int(found[3])
    if not 1 <= number <= MOST_ADDED or not 1 <= memory <= MOST_MIB or not model:
        raise Malformed("--add", "the value", text, f"1 to {MOST_ADDED:,} GPUs of a model with 1 to {MOST_MIB:,} MiB")
    return AddedGpus(number, model, MiB(memory))


def with_more(cluster: SimulatedCluster, groups: Sequence[AddedGpus]) -> SimulatedCluster:
    """With more nodes of up to eight linked GPUs. Nothing is said about their CPU, labels and taints: they have enough,
    and every pod may run there."""
    taken = {node.name for node in cluster.nodes}
    names = (name for number in count() if (name := NodeName(f"added-{number}")) not in taken)
    nodes = []
    for group in groups:
        for first in range(0, group.count, GPUS_OF_A_NODE):
            name = next(names)
            indices = range(min(group.count - first, GPUS_OF_A_NODE))
            gpus = (Gpu(place_name(name, index), name, index, group.model, group.memory, "added") for index in indices)
            nodes.append(Node(name, tuple(gpus), cluster.labels_of_added))
    return replace(cluster, nodes=(*cluster.nodes, *nodes))


def unknown_models(cluster: SimulatedCluster, groups: Sequence[AddedGpus]) -> str:
    """A sentence about models that the cluster does not have, which may be a misspelling; empty: it has all."""
    known = sorted({gpu.model for node in cluster.nodes for gpu in node.gpus})
    unknown = sorted({group.model for group in groups} - set(known))
    if not unknown:
        return ""
    return f"New models: the cluster has no {' and no '.join(unknown)} yet. It has {', '.join(known)}."
