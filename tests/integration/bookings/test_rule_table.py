"""A booking rule is one row of a table: whoever adds a row sees the rule in every place where rules are shown."""

from collections.abc import Iterable
from typing import Any

import typer
from typer.testing import CliRunner

from carrel.bookings.limits import Limit
from carrel.bookings.rules import RULES, BookingRules, Rule, RuleInput
from carrel.bookings.settings import rule_settings
from carrel.option_fields import command
from tests.kit.booking import MEMBER, Opened, at, with_rules
from tests.kit.gpus import A6000

MOST_AT_NIGHT = Limit(
    "max_gpus_at_night",
    "The most GPUs of one booking at night.",
    "So that one person cannot book all GPUs.",
    default=1,
    least=1,
)


def _check(given: RuleInput) -> Iterable[str]:
    most = given.rules.limit(MOST_AT_NIGHT)
    if given.booking.gpus > int(str(most)):
        yield f"A booking has at most {most} GPUs; {given.booking.gpus} are asked for."


NEW_ROW = Rule(
    "too-many",
    "Too many GPUs",
    _check,
    lambda rules, _: f"at most {rules.limit(MOST_AT_NIGHT)} GPUs",
    limit=MOST_AT_NIGHT,
)
TABLE = (*RULES, NEW_ROW)


async def test_a_new_row_is_in_the_verdict_the_api_and_the_pages(opened: Opened) -> None:
    ada = await with_rules(opened, BookingRules(rows=TABLE)).caller(MEMBER)

    refused = await ada.book(days=2, gpus=2)
    shown = await ada.get("/api/v1/rules")
    times = f"start={at(1)[:16]}&end={at(3)[:16]}"
    broken = await ada.get(f"/timeline/verdict?model={A6000}&{times}&gpus=2", accept="text/html")
    kept = await ada.get(f"/timeline/verdict?model={A6000}&{times}&gpus=1", accept="text/html")

    assert (refused.status, refused.codes) == (422, ["too-many"])
    assert refused.json["problems"] == [
        {
            "code": "too-many",
            "title": "Too many GPUs",
            "message": "A booking has at most 1 GPUs; 2 are asked for.",
        }
    ]
    assert shown.json["rules"][-1] == {
        "code": "too-many",
        "title": "Too many GPUs",
        "words": "at most 1 GPUs",
        "option": "--max-gpus-at-night",
        "value": 1.0,
    }
    assert "A booking has at most 1 GPUs; 2 are asked for." in broken.body.decode()
    assert "at most 1 GPUs" in kept.body.decode()
    assert "are asked for" not in kept.body.decode()


def test_a_new_row_has_an_option_and_a_variable() -> None:
    found: list[BookingRules] = []

    def run(settings: Any) -> None:
        """Runs."""
        found.append(settings.rules())

    app = typer.Typer()
    app.command()(command(rule_settings(TABLE), run))
    runner = CliRunner()

    assert "--max-gpus-at-night" in runner.invoke(app, ["--help"], terminal_width=200).output
    assert runner.invoke(app, ["--max-gpus-at-night", "3", "--cooldown-days", "7"]).exit_code == 0
    assert runner.invoke(app, [], env={"CARREL_MAX_GPUS_AT_NIGHT": "4"}).exit_code == 0
    assert runner.invoke(app, ["--max-gpus-at-night", "0"]).exit_code == 2
    assert [rules.limit(MOST_AT_NIGHT) for rules in found] == [3, 4]
    assert found[0].cooldown.days == 7
    assert found[0].rows == TABLE


def test_every_rule_is_named_once_and_its_default_is_that_of_the_rules() -> None:
    names = [row.name for row in RULES]
    rules = BookingRules()

    assert len(names) == len(set(names))
    assert {row.shown_with for row in RULES} - {""} <= {row.name for row in RULES if row.label}
    assert [limit.read(limit.default) for limit in rules.limits] == [rules.limit(limit) for limit in rules.limits]


def test_a_limit_is_an_option_and_a_variable() -> None:
    found: list[BookingRules] = []

    def run(settings: Any) -> None:
        """Runs."""
        found.append(settings.rules())

    app = typer.Typer()
    app.command()(command(rule_settings(RULES), run))
    runner = CliRunner()

    for options, variables in (
        (["--shares-per-gpu", "4"], {}),
        ([], {"CARREL_SHARES_PER_GPU": "4"}),
    ):
        assert runner.invoke(app, options, env=variables).exit_code == 0
    assert [rules.shares_per_gpu for rules in found] == [4, 4]
