"""Reads the booking form, and turns the service's answer into feedback: rule checks, problems, reasons. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.pages import form_fields
from carrel.bookings.pages.form_fields import InvalidForm
from carrel.bookings.records import BookingRefusal, BookingRequest, IdempotencyKey, Preview
from carrel.bookings.rule_results import RuleResult, judged
from carrel.bookings.rules import BookingRules


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
    problems: list[str] = []
    instants: dict[str, datetime] = {}
    for name in ("start", "end"):
        try:
            instants[name] = form_fields.local_instant(given.get(name, ""), zone)
        except InvalidForm as invalid:
            problems += [f"{name.capitalize()}: {problem}" for problem in invalid.problems]
    gpus = 1
    try:
        gpus = form_fields.gpu_count(given)
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


def times_of(wanted: BookingRequest, now: datetime) -> tuple[datetime, datetime]:
    start = wanted.start or now
    return start, start + wanted.end if isinstance(wanted.end, timedelta) else wanted.end


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
