"""`carrel doctor`: looks at each hop of an installation, and says what to do where one is broken."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.options import DataFormat
from carrel.command_errors import UNAVAILABLE, command_failed
from carrel.process import connect
from carrel.settings import ClusterSettings

if TYPE_CHECKING:
    from carrel.cli.doctor_hops import Finding

BROKEN = 1
"""The exit code if a hop fails."""


@dataclass(frozen=True)
class DoctorSettings(ClusterSettings):
    output: Annotated[DataFormat, typer.Option("--output", "-o", help="Output format.")] = DataFormat.TABLE
    """JSON and YAML are for programs: their fields do not change without notice."""


def doctor(settings: DoctorSettings) -> None:
    """Look at each hop of Carrel's installation: OK, WARN or FAIL, and what to do.

    It reads the cluster and changes nothing. Exit code 1: a hop fails. What you may not look at is a warning.

    Examples:

      carrel doctor

      carrel doctor --carrel-namespace gpus -o json
    """
    from carrel.cli.output import print_data, print_lines
    from carrel.kubernetes.cluster import ClusterError

    try:
        found = asyncio.run(_look(settings))
    except ClusterError as error:
        raise command_failed("No answer from the cluster", str(error), "kubectl cluster-info", UNAVAILABLE) from None
    if settings.output is DataFormat.TABLE:
        print_lines(*lines(found))
    else:
        fields = ("hop", "text", "advice", "page")
        print_data(
            [{"state": f.state.value, **{name: getattr(f, name) for name in fields}} for f in found], settings.output
        )
    if any(each.state.value == "FAIL" for each in found):
        raise typer.Exit(BROKEN)


async def _look(settings: DoctorSettings) -> "list[Finding]":
    from carrel.cli.doctor_hops import Installation, findings

    client = connect(settings)
    try:
        return await findings(Installation(client, settings.carrel_namespace, client.clock.now))
    finally:
        await client.aclose()


def lines(found: "Sequence[Finding]") -> list[str]:
    """One line for each hop, with what to do and where to read below it if it is not well."""
    width = max(len(each.hop) for each in found)
    said = []
    for each in found:
        said.append(f"{each.state.value:<4}  {each.hop:<{width}}  {each.text}")
        if each.state.value != "OK":
            said += [
                f"{'':<{width + 8}}{label}  {text}"
                for label, text in (("Try: ", each.advice), ("Read:", each.page))
                if text
            ]
    return said
