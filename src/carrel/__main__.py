"""The one command: `carrel <door>`. A door imports what it needs only when it is opened, so that `--help` is quick."""

import typer

from carrel import __version__, cli
from carrel.admission.command import WebhookSettings, webhook
from carrel.bookings.command import BookingSettings, booking
from carrel.cli import booking_options
from carrel.demo import demo
from carrel.lifecycle.command import ControllerSettings, controller
from carrel.node.command import AgentSettings, agent, withdraw
from carrel.node.reservation import ReservationSettings, reservation
from carrel.scheduling.command import ExtenderSettings, extender
from carrel.settings import ClusterSettings, command
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
app.command()(command(AgentSettings, agent))
app.command()(command(ClusterSettings, withdraw))
app.command()(command(ReservationSettings, reservation))
app.command()(command(booking_options.LoginSettings, booking_options.login))
app.command()(command(booking_options.FreeSettings, booking_options.free))
app.command()(command(booking_options.BookSettings, booking_options.book))
app.command("list")(command(booking_options.ListSettings, booking_options.list_))
app.command()(command(booking_options.OneSettings, booking_options.show))
app.command()(command(booking_options.ExtendSettings, booking_options.extend))
app.command()(command(booking_options.CancelSettings, booking_options.cancel))
app.command()(command(booking_options.UsageSettings, booking_options.usage))
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
