"""What forms send, read field by field, and the feedback on it: rule checks, problems, reasons.

A field gives a value, or raises `InvalidForm` with the reason.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo

from starlette.datastructures import FormData, QueryParams

from carrel.bookings.records import BookingRefusal, BookingRequest, IdempotencyKey, Preview
from carrel.bookings.rules import FIRST_YEAR, LAST_YEAR, RULES, Broken
from carrel.configuration.schema import BookingRules

MAX_TEXT = 500
MAX_GPUS = 10_000


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class InvalidForm(ValueError):
    """Everything that is wrong with a form, in words."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(" ".join(problems))


def texts(given: FormData | QueryParams) -> dict[str, str]:
    """The text fields. Files are ignored, long text is cut, control characters are removed.

    A terminal would obey control characters in another person's note.
    """
    return {name: _CONTROL.sub("", value).strip()[:MAX_TEXT] for name, value in given.items() if isinstance(value, str)}


def local_instant(text: str, zone: tzinfo) -> datetime:
    """Reads `2026-11-24T14:00` in a zone: that of the pages of this person. If the clock shows that time twice, it is
    the first."""
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidForm(f"“{text}” is not a date and time." if text else "The date and time are missing.") from None
    if not FIRST_YEAR <= local.year <= LAST_YEAR:
        raise InvalidForm(f"“{text}” is too far in the past or future.")
    if local.tzinfo is not None:
        return local.astimezone(UTC)
    instant = local.replace(tzinfo=zone).astimezone(UTC)
    shown = instant.astimezone(zone).replace(tzinfo=None)
    if shown != local:
        raise InvalidForm(f"{local:%H:%M} does not exist on {local:%d %b %Y}: the clock is set forward then.")
    return instant


def is_in_zone(given: Mapping[str, str], zone: tzinfo) -> bool:
    """Whether a form comes from a page that showed times in this zone; a link to a form does not say it."""
    return given.get("zone", str(zone)) == str(zone)


def check_zone(given: Mapping[str, str], zone: tzinfo) -> None:
    """Refuse times of a page that showed them in another zone: the same words would be another time now."""
    if not is_in_zone(given, zone):
        raise InvalidForm(f"Times are shown in {zone} now: look at them again.")


def day(text: str) -> date | None:
    """None if the text is not a date, or too near the end of the calendar to draw a timeline."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if FIRST_YEAR <= found.year <= LAST_YEAR else None


def gpu_count(given: Mapping[str, str]) -> int:
    text = given.get("gpus", "") or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_GPUS):
        raise InvalidForm(f"“{text}” is not a number of GPUs.")
    return int(text)


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
    for row in RULES:
        stands_for = {row.name, *(each.name for each in RULES if each.shown_with == row.name)}
        if row.label is None or (is_change and row.only_new) or not row.applies(is_group):
            continue
        shown |= stands_for
        if label := row.label(rules, gpus):
            found.append(RuleResult(row.name, label, not stands_for & problems.keys()))
    titles = {row.name: row.title for row in RULES}
    return found + [
        RuleResult(name, problem.title or titles.get(name, name), is_kept=False)
        for name, problem in problems.items()
        if name not in shown
    ]


@dataclass(frozen=True, slots=True)
class FormFeedback:
    """What a page says about a filled-in form."""

    checks: Sequence[RuleResult]
    problems: Sequence[str]
    earliest: datetime | None = None
    hint: str = ""
    wanted: BookingRequest | None = None
    """None: the form is invalid."""
    is_allowed: bool = False


def read_booking_form(given: Mapping[str, str], zone: tzinfo, now: datetime) -> BookingRequest:
    """Raises `InvalidForm` with everything that is wrong.

    The form suggests the first start that the rules allow. If the person leaves it unchanged and that minute has begun,
    the booking starts now and keeps its length.
    """
    check_zone(given, zone)
    problems: list[str] = []
    instants: dict[str, datetime] = {}
    for name in ("start", "end"):
        try:
            instants[name] = local_instant(given.get(name, ""), zone)
        except InvalidForm as invalid:
            problems += [f"{name.capitalize()}: {problem}" for problem in invalid.problems]
    gpus = 1
    try:
        gpus = gpu_count(given)
    except InvalidForm as invalid:
        problems += invalid.problems
    if not given.get("model"):
        problems.append("Choose a model.")
    if problems:
        raise InvalidForm(*problems)
    start, end = instants["start"], instants["end"]
    starts_now = given.get("suggested") == given.get("start") and start <= now
    return BookingRequest(
        model=given["model"],
        start=None if starts_now else start,
        end=end - start if starts_now else end,
        gpus=gpus,
        share=bool(given.get("share")),
        user=given.get("user", ""),
        note=given.get("note", ""),
        reason=given.get("reason", ""),
        group=given.get("group", ""),
    )


def idempotency_of(given: Mapping[str, str]) -> IdempotencyKey | None:
    """A form that is sent twice books once. A form that was changed after a refusal is another request."""
    key = given.get("key", "")
    names = ("model", "start", "end", "gpus", "share", "user", "note", "group")
    said = "\n".join(given.get(name, "") for name in names)
    fingerprint = hashlib.sha256(said.encode()).hexdigest()
    return IdempotencyKey(f"{key}-{fingerprint[:16]}", fingerprint) if key else None


def feedback_on(answer: Preview | BookingRefusal, wanted: BookingRequest, rules: BookingRules) -> FormFeedback:
    checks = judged(rules, answer.problems, wanted.gpus, is_group=bool(wanted.group))
    if isinstance(answer, BookingRefusal):
        return FormFeedback(checks, answer.messages, answer.earliest_start, answer.hint, wanted)
    return FormFeedback(
        checks=checks,
        problems=[problem.message for problem in answer.problems],
        earliest=answer.earliest_start,
        hint=answer.hint,
        wanted=wanted,
        is_allowed=answer.is_allowed,
    )


def why_earliest(answer: Preview | BookingRefusal) -> str:
    """Why the suggested start is the earliest: the rules that a start now would break."""
    if isinstance(answer, BookingRefusal):
        return answer.message
    names = {problem.rule for problem in answer.problems}
    is_group = bool(answer.booking.group)
    who, has, whose = ("The group", "The group has", "The group's") if is_group else ("You", "You have", "Your")
    if not names:
        return f"{who} can book a GPU now."
    if "no-active-overlap" in names:
        return f"{has} an active booking. {who} can book again when it has ended."
    if "future-limit" in names:
        return f"{has} as many planned bookings as the rules allow. Cancel or change one of them."
    if names == {"cooldown"}:
        return f"{whose} cooldown ends then."
    if names == {"capacity"}:
        return "A GPU is free for the whole time then."
    return (
        f"{whose} cooldown ends and a GPU is free then."
        if "cooldown" in names
        else "This is the first start that the rules allow."
    )
