"""Options that moved into the configuration are refused with where they went, never ignored."""

import pytest
from typer.testing import CliRunner

from carrel.__main__ import app
from carrel.cli.checks.configuration import SETTINGS
from carrel.configuration.moved import BY_OPTION, BY_VARIABLE, MOVED, Moved, moved_options, moved_variables
from carrel.configuration.reading import every_field
from carrel.configuration.schema import Configuration
from carrel.lifecycle.settings import ControllerSettings
from carrel.option_fields import options_of, secrets_of, variables_of

COMPONENTS = ("booking", "extender", "controller", "webhook", "agent")
NEVER_OPTIONS = {
    "bookings.usageNamesKept",
    "dialects.maiaBookingGpus",
    "memory.capacity",
    "memory.limits",
    "notifications.allowedHosts",
    "notifications.matrixUrl",
    "tiers.podsOfNobody",
}
GONE = {"--service", "--context", "--cdi-folder"}
PATHS = {leaf.path for leaf in every_field(Configuration())}


@pytest.mark.parametrize("each", MOVED, ids=lambda each: each.option)
def test_each_names_a_field_that_exists(each: Moved) -> None:
    assert each.field in PATHS or each.option in GONE or each.is_secret
    assert each.variable.startswith("CARREL_")
    assert (each.field or ("by the environment" if each.is_secret else "is gone")) in each.where


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


@pytest.mark.parametrize("component", [each for each in COMPONENTS if each != "agent"])
def test_a_component_takes_secrets_from_the_environment_alone_and_its_help_names_them(component: str) -> None:
    (given, *_) = secrets_of_command(component)
    option = f"--{given.removeprefix('CARREL_').lower().replace('_', '-')}"
    done = CliRunner().invoke(app, [component, f"{option}=do-not-print-me"])
    assert done.exit_code == 2 and "do-not-print-me" not in done.stderr
    assert f"{option} is only given by the environment, as {given}: other users of the machine see" in done.stderr
    assert given in CliRunner().invoke(app, [component, "--help"]).stdout


def secrets_of_command(component: str) -> list[str]:
    named = secrets_of(SETTINGS["scheduler" if component == "extender" else component])
    return [each.variables[0] for each in named.values()]


def test_a_secret_is_not_in_what_a_program_prints_of_its_settings() -> None:
    assert "hunter2" not in repr(ControllerSettings(seal_key="hunter2", terminator_token="hunter2"))


@pytest.mark.parametrize("component", SETTINGS)
def test_a_component_has_at_most_twelve_options(component: str) -> None:
    """What must be alike for several processes, or is decided by the cluster's admins, is in the configuration."""
    assert len(options_of(SETTINGS[component])) <= 12


@pytest.mark.parametrize("component", SETTINGS)
def test_no_option_of_today_is_said_to_have_moved(component: str) -> None:
    options = {f"--{name.replace('_', '-')}" for name in options_of(SETTINGS[component])}
    assert not BY_OPTION.keys() & options
    assert not BY_VARIABLE.keys() & variables_of(SETTINGS[component])


def test_words_that_are_no_options_are_left_alone() -> None:
    assert moved_options(["--port", "39999", "when-full", "-n"]) == []
    assert list(moved_variables(["PATH", "CARREL_NAMESPACE"])) == []
