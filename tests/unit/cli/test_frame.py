"""What all commands have in common: help in groups, wrong words in three lines, little to import."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from carrel import __version__
from carrel.__main__ import app
from carrel.cli.commands import COMMANDS

WIDTH = 80


def types(*words: str) -> Result:
    return CliRunner().invoke(app, words, prog_name="carrel")


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_the_help_has_every_command_below_its_heading_and_fits_the_terminal(words: tuple[str, ...]) -> None:
    done = types(*words)

    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []
    for heading, rows in COMMANDS.items():
        below = lines[lines.index(f"{heading}:") + 1 :][: len(rows)]
        assert [" ".join(line.split()) for line in below] == [f"{name} {row.help}" for name, row in rows.items()]


def test_the_version_is_printed_by_the_option_that_people_expect_and_by_the_command() -> None:
    by_option, by_command = types("--version"), types("version")

    assert by_option.stdout == by_command.stdout == f"{__version__}\n"
    assert (by_option.exit_code, by_command.exit_code) == (0, 0)


WRONG = {
    "a command that is nearly right": (
        *(("bok",), "carrel has no command 'bok'", "Did you mean book?", "carrel book --help"),
    ),
    "a command that is like none": (
        *(("xyzzy",), "carrel has no command 'xyzzy'", "None of its commands is called like that.", "carrel --help"),
    ),
    "a command of a group": (
        *(("config", "shw"), "carrel config has no command 'shw'", "Did you mean show?", "carrel config show --help"),
    ),
    "an option that is nearly right": (
        *(("free", "--day", "3"), "carrel free has no option --day", "Did you mean --days?", "carrel free --help"),
    ),
    "the beginning of an option": (
        *(("book", "--gpu", "2"), "carrel book has no option --gpu", "Did you mean --gpus?", "carrel book --help"),
    ),
    "an option before the command": (
        *(("--vers",), "carrel has no option --vers", "Did you mean --version?", "carrel --help"),
    ),
    "an argument that is not given": (
        *(("book",), "carrel book needs MODEL", "GPU model, or a part of its name that means one model."),
        "carrel book --help",
    ),
    "an option without its value": (
        *(("free", "--days"), "--days of carrel free cannot be used", "Option '--days' requires an argument."),
        "carrel free --help",
    ),
    "a value that is no number": (
        *(("book", "a100", "--gpus", "x"), "--gpus of carrel book cannot be used"),
        "It should be a valid integer\n  Number of GPUs.",
        "carrel book --help",
    ),
    "a value that is none of several": (
        *(("list", "-o", "xml"), "--output of carrel list cannot be used"),
        "'xml' is not one of 'table', 'json', 'yaml', 'csv'.\n  Output format.",
        "carrel list --help",
    ),
    "an argument too many": (
        *(("free", "a100", "b"), "carrel free takes no 'b'", "Got unexpected extra argument(s) (b)"),
        "carrel free --help",
    ),
}


@pytest.mark.parametrize(("words", "what", "why", "advice"), WRONG.values(), ids=WRONG)
def test_wrong_words_are_reported_in_three_lines(words: tuple[str, ...], what: str, why: str, advice: str) -> None:
    done = types(*words)

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"✗ {what}\n  {why}\n  Try:  {advice}\n"


def test_an_option_that_is_like_none_is_answered_with_those_that_there_are() -> None:
    done = types("version", "--qqqq")

    assert done.stderr.splitlines()[:2] == ["✗ carrel version has no option --qqqq", "  Its options are --help."]


def test_a_command_whose_output_nobody_reads_ends_without_a_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "carrel", "--help"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_without_utf_8_gets_simpler_characters() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "carrel", "bok"]
    done = subprocess.run(command, capture_output=True, env=environment, encoding="latin-1")

    assert done.stderr.splitlines()[0] == "x carrel has no command 'bok'"


HEAVY = {
    *("aiohttp", "asyncio", "cryptography", "msgspec", "prometheus_client", "pydantic", "rich", "sqlalchemy", "yaml"),
    "carrel.ledger.ledger",
}
LOADS = {
    "": set[str](),
    "--help": set[str](),
    "--version": set[str](),
    "free --help": {"pydantic"},
    "simulate --help": {"pydantic"},
    "booking --help": {"pydantic", "msgspec"},
    "agent --help": {"pydantic", "msgspec"},
    "demo --help": {"pydantic", "msgspec"},
}
"""What is typed → which of these it loads. Typer reads options with pydantic; the configuration's words are read from
objects that msgspec decodes."""


@pytest.mark.parametrize("typed", ["why -A", "gpus", "inspect", "explain pod/train-0"])
def test_a_command_that_reads_the_cluster_loads_neither_the_configuration_nor_the_booking_service(typed: str) -> None:
    script = (
        "import atexit, sys; from carrel.__main__ import main;"
        "parts = ('carrel.configuration.', 'carrel.bookings.', 'carrel.process');"
        "atexit.register(lambda: print('loaded:', *(name for name in sys.modules if name.startswith(parts)))); main()"
    )
    words = [*typed.split(), "--server", "http://127.0.0.1:9"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (6, "loaded:\n"), done


@pytest.mark.parametrize("typed", LOADS)
def test_what_costs_long_is_not_loaded_before_it_is_needed(typed: str) -> None:
    script = (
        "import atexit, sys; from carrel.__main__ import main;"
        f"atexit.register(lambda: print(*{HEAVY!r} & sys.modules.keys(), file=sys.stderr)); main()"
    )
    done = subprocess.run([sys.executable, "-c", script, *typed.split()], capture_output=True, text=True, check=True)

    assert set(done.stderr.split()) == LOADS[typed]
