"""What runs have shown, as rows: for a table, and for CSV."""

from collections.abc import Sequence
from math import ceil
from statistics import fmean, pstdev

from carrel.simulation.engine import RunResult
from carrel.simulation.over_time import TimedResult

Rows = list[list[str]]


def arrival_rows(cases: Sequence[tuple[str, Sequence[RunResult]]]) -> Rows:
    """One row for each case and policy, the head first."""
    rows: Rows = [["CASE", "POLICY", "SEEDS", "ALLOCATED %", "±", "FRAGMENTED %", "PLACED", "DROPPED"]]
    for case, results in cases:
        for policy in dict.fromkeys(each.policy for each in results):
            of = [each for each in results if each.policy == policy]
            allocated = [each.allocated for each in of]
            row = [case, policy, f"{len(of)}", f"{fmean(allocated):.2f}", f"{pstdev(allocated):.2f}"]
            row.append(f"{fmean(each.fragmented for each in of):.2f}")
            row += [f"{fmean(each.placed for each in of):.0f}", f"{fmean(each.dropped for each in of):.0f}"]
            rows.append(row)
    return rows


def arrival_csv(cases: Sequence[tuple[str, Sequence[RunResult]]]) -> Rows:
    """Every point of every run."""
    rows: Rows = [["case", "policy", "seed", "arrived_percent", "allocated_percent", "fragmented_percent"]]
    rows += [
        [case, each.policy, f"{each.seed}", f"{at.arrived:.3f}", f"{at.allocated:.3f}", f"{at.fragmented:.3f}"]
        for case, results in cases
        for each in results
        for at in each.curve
    ]
    return rows


def timed_rows(cases: Sequence[tuple[str, Sequence[TimedResult]]], *, with_idle: bool = False) -> Rows:
    """One row for each case and policy, the head first. A case is the cluster as it is, or with something changed.

    `with_idle`: also what has become of idle GPUs, and how long most pods waited.
    """
    everything = [each for _, results in cases for each in results]
    reasons = sorted({reason for each in everything for reason in each.waited_hours})
    rules = sorted({rule for each in everything for rule in each.booking_delay_days})
    has_bookings = any(each.bookings or each.refused_bookings for each in everything)
    rows: Rows = [["CASE", "POLICY", "USED %", "PLACED", "WAITING", "REVOKED", "ENDED"]]
    rows[0] += [f"WAITED: {reason} (h)" for reason in reasons]
    rows[0] += ["BOOKINGS", "BOOKED (GPU·d)", "REFUSED"] if has_bookings else []
    rows[0] += [f"LATER: {rule} (d)" for rule in rules]
    rows[0] += IDLE_HEADS if with_idle else []
    for case, results in cases:
        for policy in dict.fromkeys(each.policy for each in results):
            of = [each for each in results if each.policy == policy]
            counts = zip(*((each.placed, each.waiting, each.revoked, each.ended) for each in of), strict=True)
            row = [case, policy, f"{fmean(each.allocated for each in of):.2f}"]
            row += [f"{fmean(count):.0f}" for count in counts]
            row += [f"{fmean(each.waited_hours.get(reason, 0.0) for each in of):.2f}" for reason in reasons]
            if has_bookings:
                row += [f"{of[0].bookings}", f"{of[0].booked_gpu_days:.1f}", f"{of[0].refused_bookings}"]
            row += [f"{of[0].booking_delay_days.get(rule, 0.0):.1f}" for rule in rules]
            row += _idle_cells(of) if with_idle else []
            rows.append(row)
    return rows


IDLE_HEADS = ["GAVE BACK", "BACK: idle (GPU·h)", "BACK: in use (GPU·h)", "WAIT p50 (h)", "WAIT p90 (h)"]


def _idle_cells(of: Sequence[TimedResult]) -> list[str]:
    cells = [f"{fmean(each.given_back for each in of):.0f}"]
    cells += [f"{fmean(each.idle_gpu_hours for each in of):.1f}", f"{fmean(each.active_gpu_hours for each in of):.1f}"]
    waits = sorted(wait for each in of for wait in each.waits_hours)
    return cells + [f"{waits[ceil(part * len(waits)) - 1]:.2f}" if waits else "–" for part in (0.5, 0.9)]


def makes_no_difference(cases: Sequence[tuple[str, Sequence[TimedResult]]]) -> bool:
    """Whether something was changed, and every policy does just what it did without the change."""
    (_, before), *changed = cases
    return bool(changed) and all(after == before for _, after in changed)
