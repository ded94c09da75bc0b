"""How every command reports that it failed: three lines on stderr, and an exit code."""

import typer

from carrel.parsing.printable import printable

USAGE, REFUSED, NOT_FOUND, CONFLICT, UNAVAILABLE, FORBIDDEN = 2, 3, 4, 5, 6, 7
"""Exit codes, the same for all commands."""


def command_failed(what: str, why: str, advice: str, code: int) -> typer.Exit:
    """Prints what went wrong, why, and what helps; raise what it returns."""
    because = "\n".join(f"  {printable(line.strip())}" for line in why.split("\n"))
    typer.echo(f"✗ {printable(what)}\n{because}\n  Try:  {printable(advice)}", err=True)
    return typer.Exit(code)
