"""Options that moved into the configuration are refused with where they went, never ignored."""

import pytest
from typer.testing import CliRunner

from carrel.__main__ import app
from carrel.configuration.moved import BY_VARIABLE, MOVED, Moved, moved_options, moved_variables
from carrel.configuration.reading import every_field
from carrel.configuration.schema import Configuration

COMPONENTS = ("booking", "extender", "controller", "webhook", "agent")
NEVER_OPTIONS = {"dialects.maiaBookingGpus", "tiers.podsOfNobody"}
PATHS = {leaf.path for leaf in every_field(Configuration())}


@pytest.mark.parametrize("each", MOVED, ids=lambda each: each.option)
def test_each_names_a_field_that_exists(each: Moved) -> None:
    assert each.field in PATHS or (each.option, each.field) == ("--service", "")
    assert each.variable.startswith("CARREL_")
    assert (each.field or "is gone") in each.where


def test_every_field_that_was_an_option_is_there() -> None:
    assert {each.field for each in MOVED} - {""} == PATHS - NEVER_OPTIONS


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_refuses_options_that_moved_all_at_once(component: str) -> None:
    done = CliRunner().invoke(app, [component, "--port", "0", "--when-full=wait", "--zone", "UTC"])
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        f"✗ carrel {component} does not have --when-full any more",
        "  --when-full is tiers.whenFull in the configuration",
        "  --zone is lab.timezone in the configuration",
        "  Try:  carrel config show tiers.whenFull",
    ]


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_refuses_variables_that_moved(component: str) -> None:
    env = {"CARREL_WHEN_FULL": "wait", "CARREL_MODE": "coexist", "CARREL_ZONE": "", "KUBECONFIG": ""}
    words = [component, "--server", "http://127.0.0.1:1", *(["--node-name", "n1"] if component == "agent" else [])]
    done = CliRunner().invoke(app, words, env=env)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[:3] == [
        "✗ The settings cannot be used",
        "  CARREL_MODE is nodes.plugin in the configuration: native or coexist; an agent that only reports has"
        " --report-only",
        "  CARREL_WHEN_FULL is tiers.whenFull in the configuration",
    ]


def test_other_commands_keep_options_of_the_same_name() -> None:
    done = CliRunner().invoke(app, ["simulate", "--cooldown-days", "x"])
    assert "any more" not in done.stderr


def test_no_option_of_today_is_said_to_have_moved() -> None:
    from carrel.cli.checks.configuration import SETTINGS, environment_names

    assert not BY_VARIABLE.keys() & {name for each in SETTINGS.values() for name in environment_names(each)}


def test_words_that_are_no_options_are_left_alone() -> None:
    assert moved_options(["--port", "39999", "when-full", "-n"]) == []
    assert list(moved_variables(["PATH", "CARREL_NAMESPACE"])) == []
