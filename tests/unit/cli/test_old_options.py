"""Options that had "cards" in their name are still accepted under it, with their environment variables."""

import dataclasses
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from carrel.admission.settings import WebhookSettings
from carrel.dialects.options import HideFrom
from carrel.node.settings import AgentSettings, OfferWholeGpus
from carrel.settings import DialectSettings, command


@pytest.mark.parametrize(
    ("settings", "field", "names", "given", "expected"),
    [
        (DialectSettings, "shared_claims_per_gpu", ("shared-claims-per-gpu", "shared-claims-per-card"), "7", 7),
        (WebhookSettings, "hide_cards_from", ("hide-gpus-from", "hide-cards-from"), "all-pods", HideFrom.ALL_PODS),
        (AgentSettings, "whole_gpus", ("whole-gpus", "whole-cards"), "no", OfferWholeGpus.NO),
    ],
)
def test_the_old_name_of_an_option_is_still_accepted(
    settings: type, field: str, names: tuple[str, str], given: str, expected: object
) -> None:
    found: list[Any] = []

    def run(made: Any) -> None:
        """Runs."""
        found.append(getattr(made, field))

    app = typer.Typer()
    app.command()(command(settings, run))
    required = ["--node-name", "n1"] if "node_name" in {each.name for each in dataclasses.fields(settings)} else []

    for name in names:
        variable = f"CARREL_{name.replace('-', '_').upper()}"
        for options, environment in ([f"--{name}", given], {}), ([], {variable: given}):
            done = CliRunner().invoke(app, [*required, *options], env=environment)
            assert done.exit_code == 0, done.output
    assert found == [expected] * 4
