"""The one command: `carrel <door>`. A door imports what it needs only when it is opened, so that `--help` is quick."""

import typer

from carrel import __version__
from carrel.doors import cli
from carrel.doors.agent import AgentSettings, agent, withdraw
from carrel.doors.api import api
from carrel.doors.booking import BookingSettings, booking
from carrel.doors.cli import bookings
from carrel.doors.controller import ControllerSettings, controller
from carrel.doors.demo import demo
from carrel.doors.extender import ExtenderSettings, extender
from carrel.doors.reservation import ReservationSettings, reservation
from carrel.doors.webhook import WebhookSettings, webhook
from carrel.settings import ClusterSettings, command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.",
)
app.command()(demo)
app.command()(api)
app.command()(command(BookingSettings, booking))
app.command()(command(ExtenderSettings, extender))
app.command()(command(ControllerSettings, controller))
app.command()(command(WebhookSettings, webhook))
app.command()(command(AgentSettings, agent))
app.command()(command(ClusterSettings, withdraw))
app.command()(command(ReservationSettings, reservation))
app.command()(command(bookings.LoginSettings, bookings.login))
app.command()(command(bookings.FreeSettings, bookings.free))
app.command()(command(bookings.BookSettings, bookings.book))
app.command("list")(command(bookings.ListSettings, bookings.list_))
app.command()(command(bookings.OneSettings, bookings.show))
app.command()(command(bookings.ExtendSettings, bookings.extend))
app.command()(command(bookings.CancelSettings, bookings.cancel))
app.command()(command(bookings.UsageSettings, bookings.usage))
app.command()(command(cli.WhySettings, cli.why))
app.command()(command(cli.ExplainSettings, cli.explain))
app.command()(command(cli.InspectSettings, cli.inspect))
app.command()(command(cli.SchedulerConfigSettings, cli.scheduler_config))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    app(prog_name="carrel")


if __name__ == "__main__":
    main()
