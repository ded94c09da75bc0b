"""Reads the booking form, and turns the service's answer into feedback: rule checks, problems, reasons. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.pages import form_fields, wording
from carrel.bookings.pages.form_fields import InvalidForm
from carrel.bookings.records import No, Once, Preview, Wish
from carrel.bookings.rules import Broken, Rules, words


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """A rule, and whether the request keeps it."""

    label: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class FormFeedback:
    """What a page says about a filled-in form."""

    checks: Sequence[RuleCheck]
    problems: Sequence[str]
    earliest: datetime | None = None
    hint: str = ""
    wish: Wish | None = None
    """None: the form is invalid."""
    is_allowed: bool = False


def read_booking_form(given: Mapping[str, str], zone: tzinfo, now: datetime) -> Wish:
    """Raises `InvalidForm` with everything that is wrong.

    The form offers the first start that the rules allow. If the person leaves it unchanged and that minute has begun,
    the booking starts now and keeps its length.
    """
    problems: list[str] = []
    instants: dict[str, datetime] = {}
    for name in ("start", "end"):
        try:
            instants[name] = form_fields.local_instant(given.get(name, ""), zone)
        except InvalidForm as invalid:
            problems += [f"{name.capitalize()}: {problem}" for problem in invalid.problems]
    cards = 1
    try:
        cards = form_fields.gpu_count(given)
    except InvalidForm as invalid:
        problems += invalid.problems
    if not given.get("model"):
        problems.append("Choose a model.")
    if problems:
        raise InvalidForm(*problems)
    start, end = instants["start"], instants["end"]
    starts_now = given.get("offered") == given.get("start") and start <= now
    return Wish(
        model=given["model"],
        start=None if starts_now else start,
        end=end - start if starts_now else end,
        cards=cards,
        share=bool(given.get("share")),
        user=given.get("user", ""),
        note=given.get("note", ""),
        reason=given.get("reason", ""),
    )


def times_of(wish: Wish, now: datetime) -> tuple[datetime, datetime]:
    start = wish.start or now
    return start, start + wish.end if isinstance(wish.end, timedelta) else wish.end


def idempotency_of(given: Mapping[str, str]) -> Once | None:
    """A form that is sent twice books once. A form that was changed after a refusal is another request."""
    key = given.get("key", "")
    said = "\n".join(given.get(name, "") for name in ("model", "start", "end", "cards", "share", "user", "note"))
    fingerprint = hashlib.sha256(said.encode()).hexdigest()
    return Once(f"{key}-{fingerprint[:16]}", fingerprint) if key else None


def feedback_on(answer: Preview | No, wish: Wish, rules: Rules) -> FormFeedback:
    if isinstance(answer, No):
        problems = [problem.message for problem in answer.problems] or [answer.message]
        return FormFeedback(
            rule_checks(answer.problems, wish.cards, rules), problems, answer.earliest_start, answer.hint, wish
        )
    return FormFeedback(
        checks=rule_checks(answer.problems, wish.cards, rules),
        problems=[problem.message for problem in answer.problems],
        earliest=answer.earliest_start,
        hint=answer.hint,
        wish=wish,
        is_allowed=answer.is_allowed,
    )


NEW_BOOKING_RULES = frozenset({"no-active-overlap", "future-limit"})
"""Rules that apply to new bookings only, not to changes."""


def rule_checks(
    broken: Sequence[Broken], gpus: int, rules: Rules, *, leave_out: frozenset[str] = frozenset()
) -> list[RuleCheck]:
    """Every rule, kept or broken. A rule that this page does not know is shown with its title."""
    names = {problem.rule for problem in broken}
    room = "a GPU is free" if gpus == 1 else f"{wording.count(gpus, 'GPU')} are free"
    known = [
        (f"at least {words(rules.min_duration)}", {"min-duration", "end-after-start"}),
        (f"at most {words(rules.max_duration)}", {"max-duration"}),
        ("not in the past", {"not-in-the-past", "begun", "over"}),
        ("no booking is active", {"no-active-overlap"}),
        (f"{rules.planned} planned at a time", {"future-limit"}),
        (f"{words(rules.cooldown)} since your last booking" if rules.cooldown else "", {"cooldown"}),
        (room, {"capacity", "unknown-model"}),
    ]
    checks = [RuleCheck(label, not (rule & names)) for label, rule in known if label and not rule & leave_out]
    shown = set().union(*(rule for _, rule in known))
    return checks + [RuleCheck(problem.title, is_kept=False) for problem in broken if problem.rule not in shown]


def why_earliest(answer: Preview | No) -> str:
    """Why the offered start is the earliest: the rules that a start now would break."""
    if isinstance(answer, No):
        return answer.message
    names = {problem.rule for problem in answer.problems}
    if not names:
        return "You can book a GPU now."
    if "no-active-overlap" in names:
        return "You have an active booking. You can book again when it has ended."
    if "future-limit" in names:
        return "You have as many planned bookings as the rules allow. Cancel or change one of them."
    if names == {"cooldown"}:
        return "Your cooldown ends then."
    if names == {"capacity"}:
        return "A GPU is free for the whole time then."
    return (
        "Your cooldown ends and a GPU is free then."
        if "cooldown" in names
        else "This is the first start that the rules allow."
    )
