"""The one command: `carrel <component>`. A component imports what it needs only when it runs, so `--help` is fast."""

import logging
from typing import Annotated

import typer

from carrel import __version__
from carrel.admission.entry_point import WebhookSettings, webhook
from carrel.bookings.entry_point import BookingSettings, booking
from carrel.cli.commands import COMMANDS
from carrel.demo import demo
from carrel.lifecycle.entry_point import ControllerSettings, controller
from carrel.log_lines import log_lines
from carrel.node import entry_point as node
from carrel.option_fields import command
from carrel.scheduling.entry_point import ExtenderSettings, extender
from carrel.settings import ClusterSettings
from kubernetes_in_memory.command import api_command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.",
)
app.command()(demo)
app.command()(api_command("carrel api"))
app.command()(command(BookingSettings, booking))
app.command()(command(ExtenderSettings, extender))
app.command()(command(ControllerSettings, controller))
app.command()(command(WebhookSettings, webhook))
app.command()(command(node.AgentSettings, node.agent))
app.command()(command(ClusterSettings, node.withdraw))
app.command()(command(node.ReservationSettings, node.reservation))
app.command()(command(node.VisibleGpusSettings, node.visible_gpus))
for _name, _settings, _run in COMMANDS:
    app.command(_name)(command(_settings, _run))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def every_command(
    is_version_asked: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What comes before the name of a command."""


def main() -> None:
    log_lines(logging.WARNING, form="%(levelname)s %(message)s")  # a component that runs says more, in another form
    app(prog_name="carrel")


if __name__ == "__main__":
    main()
