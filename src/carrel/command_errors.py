"""How every command reports that it failed: three lines on stderr, and an exit code."""

import typer

USAGE, REFUSED, NOT_FOUND, CONFLICT, UNAVAILABLE, FORBIDDEN = 2, 3, 4, 5, 6, 7
"""Exit codes, the same for all commands."""


def command_failed(what: str, why: str, advice: str, code: int) -> typer.Exit:
    """Prints what went wrong, why, and what helps; raise what it returns."""
    typer.echo(f"✗ {what}\n  {why}\n  Try:  {advice}", err=True)
    return typer.Exit(code)
