"""A booking rule is one row of a table: whoever adds a row sees the rule in every place where rules are shown."""

from collections.abc import Iterable
from dataclasses import fields

import pytest

from carrel.bookings import advice, rules
from carrel.bookings.api import availability
from carrel.bookings.pages import forms
from carrel.bookings.rules import RULES, Rule, RuleInput
from carrel.configuration.schema import BookingRules
from tests.kit.booking import MEMBER, Opened, at
from tests.kit.gpus import A6000


def _check(given: RuleInput) -> Iterable[str]:
    if given.booking.gpus > 1:
        yield f"At night a booking has at most 1 GPU; {given.booking.gpus} are asked for."


NEW_ROW = Rule("too-many", "Too many GPUs", _check, lambda *_: "at most 1 GPU at night")


async def test_a_new_row_is_in_the_verdict_the_api_and_the_pages(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rules, advice, availability, forms):
        monkeypatch.setattr(module, "RULES", (*RULES, NEW_ROW))
    ada = await opened.caller(MEMBER)

    refused = await ada.book(days=2, gpus=2)
    shown = await ada.get("/api/v1/rules")
    times = f"start={at(1)[:16]}&end={at(3)[:16]}"
    broken = await ada.get(f"/timeline/verdict?model={A6000}&{times}&gpus=2", accept="text/html")
    kept = await ada.get(f"/timeline/verdict?model={A6000}&{times}&gpus=1", accept="text/html")

    message = "At night a booking has at most 1 GPU; 2 are asked for."
    assert (refused.status, refused.codes) == (422, ["too-many"])
    assert refused.json["problems"] == [{"code": "too-many", "title": "Too many GPUs", "message": message}]
    assert shown.json["rules"][-1] == {
        "code": "too-many",
        "title": "Too many GPUs",
        "words": "at most 1 GPU at night",
        "field": None,
        "value": None,
    }
    assert message in broken.body.decode()
    assert "at most 1 GPU at night" in kept.body.decode()
    assert "are asked for" not in kept.body.decode()


def test_every_rule_is_named_once_and_every_limit_is_a_field_of_the_configuration() -> None:
    names = [row.name for row in RULES]
    limits = [row.limit for row in RULES if row.limit]

    assert len(names) == len(set(names))
    assert {row.shown_with for row in RULES} - {""} <= {row.name for row in RULES if row.label}
    assert sorted([*limits, "settling_time"]) == sorted(each.name for each in fields(BookingRules))
