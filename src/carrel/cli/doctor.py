"""`carrel doctor`: looks at each hop of an installation, and says what to do where one is broken."""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from carrel.cli.no_answer import cluster_errors
from carrel.cli.options import ClusterQuerySettings, DataFormat
from carrel.cli.output import print_data, print_lines
from carrel.option_fields import option

if TYPE_CHECKING:
    from carrel.cli.checks.finding import Finding

BROKEN = 1
"""The exit code if a hop fails."""
INTERRUPTED = 130
"""As a shell has it after Ctrl-C."""
FIELDS = ("hop", "text", "advice", "page")


@dataclass(frozen=True)
class DoctorSettings(ClusterQuerySettings):
    probe: bool = option(False, "Also start two short pods that say what a container really sees.", "--probe")
    """Without it nothing in the cluster changes. One of the pods takes a free GPU for some seconds, as a pod without a
    booking; both are removed afterwards, also after Ctrl-C."""
    before_install: bool = option(
        False, "Say what would happen to the GPU pods of each namespace once Carrel is installed.", "--before-install"
    )
    """It looks at nothing of Carrel's, and changes nothing."""
    probe_namespace: str = option("default", "Namespace of these pods.")
    """Not Carrel's own, whose pods may see every GPU."""
    probe_image: str = option("", "Image of these pods, with Carrel in it; default: Carrel's own.")
    """For namespaces that pull images from elsewhere."""


def doctor(settings: DoctorSettings) -> None:
    """Look at each hop of Carrel's installation: OK, WARN or FAIL, and what to do.

    It reads the cluster and, unless --probe is given, changes nothing. What you may not look at is a warning.
    Exit code 1: a hop fails. Each check is explained in docs/doctor.md.

    Examples:

      carrel doctor

      carrel doctor --probe --probe-namespace lab

      carrel doctor --before-install

      carrel doctor --carrel-namespace gpus -o json
    """
    no_answer = ("No answer from the cluster", "kubectl cluster-info")
    try:
        with cluster_errors(settings, no_answer, no_answer):
            found = asyncio.run(_look(settings))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(INTERRUPTED) from None
    if settings.output is DataFormat.TABLE:
        print_lines(*lines(found))
        if not (settings.probe or settings.before_install):
            print_lines("", "Not looked at: what a container really sees. carrel doctor --probe starts two short pods.")
    else:
        print_data(
            [{"state": f.state.value, **{name: getattr(f, name) for name in FIELDS}} for f in found], settings.output
        )
    if any(each.state.value == "FAIL" for each in found):
        raise typer.Exit(BROKEN)


async def _look(settings: DoctorSettings) -> "list[Finding]":
    from carrel.cli.checks.finding import Installation, ProbeOptions
    from carrel.cli.checks.table import BEFORE_INSTALL, CHECKS, findings
    from carrel.process import connect

    client = connect(settings)
    probe = ProbeOptions(settings.probe_namespace, settings.probe_image) if settings.probe else None
    own = asyncio.current_task()
    assert own is not None
    with contextlib.suppress(NotImplementedError):  # Windows has no such handlers
        # A pod is ended with SIGTERM: what was started must be removed then too.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, own.cancel)
    async with contextlib.aclosing(client):
        checks = BEFORE_INSTALL if settings.before_install else CHECKS
        return await findings(Installation(client, settings.carrel_namespace, client.clock.now, probe), checks)


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
