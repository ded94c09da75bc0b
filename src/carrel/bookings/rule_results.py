"""The rules as people see them beside a booking: kept or broken. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from carrel.bookings.rules import BookingRules, Broken


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule as people see it beside a booking."""

    rule: str
    words: str
    is_kept: bool


def judged(
    rules: BookingRules,
    broken: Iterable[Broken],
    gpus: int = 1,
    *,
    is_change: bool = False,
    is_group: bool = False,
) -> list[RuleResult]:
    """Every rule that is shown to people, kept or broken; then those that are only shown when they are broken."""
    problems = {problem.rule: problem for problem in broken}
    found: list[RuleResult] = []
    shown: set[str] = set()
    for row in rules.rows:
        stands_for = {row.name, *(each.name for each in rules.rows if each.shown_with == row.name)}
        if row.label is None or (is_change and row.only_new) or not row.applies(is_group):
            continue
        shown |= stands_for
        if label := row.label(rules, gpus):
            found.append(RuleResult(row.name, label, not stands_for & problems.keys()))
    titles = {row.name: row.title for row in rules.rows}
    return found + [
        RuleResult(name, problem.title or titles.get(name, name), is_kept=False)
        for name, problem in problems.items()
        if name not in shown
    ]
