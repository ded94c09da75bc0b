"""From a form to a wish, and from a verdict to rule chips. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.pages import form_fields
from carrel.bookings.pages.form_fields import Unreadable
from carrel.bookings.records import BookingRefusal, BookingRequest, IdempotencyKey, Preview
from carrel.bookings.rules import BookingRules, Broken, judged


@dataclass(frozen=True, slots=True)
class Chip:
    """A rule, and whether the wish keeps it."""

    label: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a page says about a wish."""

    chips: Sequence[Chip]
    problems: Sequence[str]
    earliest: datetime | None = None
    hint: str = ""
    wish: BookingRequest | None = None
    """None: it could not be read."""
    is_allowed: bool = False


def read_wish(given: Mapping[str, str], zone: tzinfo, now: datetime) -> BookingRequest:
    """Raises `Unreadable` with everything that is wrong.

    The form offers the first start that is allowed. Who leaves it as it was offered, and books when it has just passed,
    means *at once*, for as long as it was shown.
    """
    problems: list[str] = []
    instants: dict[str, datetime] = {}
    for name in ("start", "end"):
        try:
            instants[name] = form_fields.local_instant(given.get(name, ""), zone)
        except Unreadable as unreadable:
            problems += [f"{name.capitalize()}: {problem}" for problem in unreadable.problems]
    cards = 1
    try:
        cards = form_fields.cards(given)
    except Unreadable as unreadable:
        problems += unreadable.problems
    if not given.get("model"):
        problems.append("Which model?")
    if problems:
        raise Unreadable(*problems)
    start, end = instants["start"], instants["end"]
    is_at_once = given.get("offered") == given.get("start") and start <= now
    return BookingRequest(
        model=given["model"],
        start=None if is_at_once else start,
        end=end - start if is_at_once else end,
        cards=cards,
        share=bool(given.get("share")),
        user=given.get("user", ""),
        note=given.get("note", ""),
        reason=given.get("reason", ""),
    )


def times_of(wish: BookingRequest, now: datetime) -> tuple[datetime, datetime]:
    start = wish.start or now
    return start, start + wish.end if isinstance(wish.end, timedelta) else wish.end


def once_of(given: Mapping[str, str]) -> IdempotencyKey | None:
    """A form that is sent twice books once. A form that was changed after it had been refused is another request."""
    key = given.get("key", "")
    said = "\n".join(given.get(name, "") for name in ("model", "start", "end", "cards", "share", "user", "note"))
    fingerprint = hashlib.sha256(said.encode()).hexdigest()
    return IdempotencyKey(f"{key}-{fingerprint[:16]}", fingerprint) if key else None


def judge(answer: Preview | BookingRefusal, wish: BookingRequest, rules: BookingRules) -> Judgement:
    if isinstance(answer, BookingRefusal):
        problems = [problem.message for problem in answer.problems] or [answer.message]
        return Judgement(
            chips_for(answer.problems, wish.cards, rules), problems, answer.earliest_start, answer.hint, wish
        )
    return Judgement(
        chips=chips_for(answer.problems, wish.cards, rules),
        problems=[problem.message for problem in answer.problems],
        earliest=answer.earliest_start,
        hint=answer.hint,
        wish=wish,
        is_allowed=answer.is_allowed,
    )


def chips_for(broken: Sequence[Broken], gpus: int, rules: BookingRules, *, is_change: bool = False) -> list[Chip]:
    """Every rule, kept or broken, as the table of rules says."""
    return [Chip(each.words, each.is_kept) for each in judged(rules, broken, gpus, is_change=is_change)]


def reason_for(answer: Preview | BookingRefusal) -> str:
    """Why the offered start is the first: from what is wrong with beginning now."""
    if isinstance(answer, BookingRefusal):
        return answer.message
    names = {problem.rule for problem in answer.problems}
    if not names:
        return "A card can be booked now, and nothing stands in the way."
    if "no-active-overlap" in names:
        return "You have a booking that runs; a new one can be made after it has ended."
    if "future-limit" in names:
        return "You have as many planned bookings as you may; cancel or change one of them."
    if names == {"cooldown"}:
        return "Your cooldown ends then."
    if names == {"capacity"}:
        return "A card becomes free then for so long."
    return (
        "Your cooldown is over then and a card is free." if "cooldown" in names else "The first start that is allowed."
    )
