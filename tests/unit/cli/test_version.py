from typer.testing import CliRunner

from carrel import __version__
from carrel.__main__ import app


def test_the_version_is_printed_by_the_option_that_people_expect_and_by_the_command() -> None:
    by_option, by_command = (CliRunner().invoke(app, [word]) for word in ("--version", "version"))

    assert by_option.stdout == by_command.stdout == f"{__version__}\n"
    assert (by_option.exit_code, by_command.exit_code) == (0, 0)
