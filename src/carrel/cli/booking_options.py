"""`carrel login|free|book|list|show|extend|cancel|usage`: their options and what they say of themselves.

The work is done in `signing_in` and `verbs`, which are only imported when a command runs: `--help` stays quick.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from carrel.cli.tables import Listing

Words = list[str] | None


@dataclass(frozen=True)
class ServiceSettings:
    """Which booking service, as whom."""

    server: Annotated[
        str, typer.Option(help="Address of the booking service; else that of the last login.", envvar="CARREL_URL")
    ] = ""
    token: Annotated[
        str, typer.Option(help="A token, instead of the login's; better given by the variable.", envvar="CARREL_TOKEN")
    ] = ""
    """Options are seen by everybody who may list processes."""
    insecure: Annotated[bool, typer.Option(help="Send the token also without TLS to another machine.")] = False
    """Whoever listens on the way could book in your name."""


@dataclass(frozen=True)
class ListingSettings(ServiceSettings):
    output: Annotated[Listing, typer.Option("--output", "-o", help="How it is shown.")] = Listing.TABLE
    """JSON, YAML and CSV for programs; their fields do not change without notice."""


@dataclass(frozen=True)
class LoginSettings(ServiceSettings):
    address: Annotated[str, typer.Argument(help="The booking service, such as https://gpus.lab.org.")] = ""
    scope: Annotated[Words, typer.Option(help="What the login may be used for: read, book, admin.")] = None
    """Without it: read and book. Who is an admin need not be one all day."""
    browser: Annotated[bool, typer.Option(help="Open a browser; else the address is only printed.")] = True
    forget: Annotated[bool, typer.Option("--forget", help="Log out: the token is revoked and forgotten.")] = False


@dataclass(frozen=True)
class FreeSettings(ListingSettings):
    model: Annotated[str, typer.Argument(help="One model, or a part of its name; without it, all.")] = ""
    days: Annotated[int, typer.Option(help="How many can be booked through each of so many days.", min=0, max=366)] = 0


@dataclass(frozen=True, kw_only=True)
class BookSettings(ListingSettings):
    model: Annotated[str, typer.Argument(help="The model, or a part of its name that means one.")]
    days: Annotated[float | None, typer.Option(help="How long, in days of 24 hours.", min=0.01)] = None
    until: Annotated[str, typer.Option(help="The end, instead of --days.")] = ""
    start: Annotated[
        str, typer.Option("--from", help="The start: 2026-12-12 (midnight in the lab) or 2026-12-12T09:00. Else now.")
    ] = ""
    cards: Annotated[int, typer.Option(help="How many cards.", min=1)] = 1
    share: Annotated[bool, typer.Option("--share", help="A share of one card's memory instead of whole cards.")] = False
    user: Annotated[str, typer.Option("--for", help="For somebody else; needs the role lab-admin and --reason.")] = ""
    reason: Annotated[str, typer.Option(help="Why for somebody else; that person is shown it.")] = ""
    note: Annotated[str, typer.Option(help="For yourself and the lab admins.")] = ""
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace that the pods will be in.")] = ""
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would come of it; change nothing.")] = False


@dataclass(frozen=True)
class ListSettings(ListingSettings):
    everybody: Annotated[bool, typer.Option("--all", "-A", help="Everybody's, not only yours.")] = False
    model: Annotated[str, typer.Option(help="Only this model.")] = ""
    state: Annotated[Words, typer.Option(help="Only: planned, active, ended, cancelled.")] = None
    search: Annotated[str, typer.Option("--search", "-q", help="Part of the person, the model or a note.")] = ""
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 100


@dataclass(frozen=True)
class OneSettings(ListingSettings):
    booking: Annotated[str, typer.Argument(help="Its id; without it, yours that runs or is planned.")] = ""


@dataclass(frozen=True)
class ExtendSettings(OneSettings):
    days: Annotated[float | None, typer.Option(help="So many days longer; a negative number shortens.")] = None
    until: Annotated[str, typer.Option(help="The new end, instead of --days.")] = ""
    reason: Annotated[str, typer.Option(help="Why, if it is somebody else's.")] = ""
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would come of it; change nothing.")] = False


@dataclass(frozen=True)
class CancelSettings(OneSettings):
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    reason: Annotated[str, typer.Option(help="Why, if it is somebody else's.")] = ""
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would follow; change nothing.")] = False


@dataclass(frozen=True)
class UsageSettings(ListingSettings):
    since: Annotated[str, typer.Option(help="From this day on; else 30 days.")] = ""
    until: Annotated[str, typer.Option(help="Until this day; else now.")] = ""


def login(settings: LoginSettings) -> None:
    """Log in to the booking service with a browser, and remember it.

    With --token (or CARREL_TOKEN) that token is checked and remembered instead.

    Examples:

      carrel login https://gpus.lab.org

      CARREL_TOKEN=carrel_… carrel login https://gpus.lab.org

      carrel login --forget
    """
    from carrel.cli.login import forget, log_in

    if settings.forget:
        forget(settings)
    else:
        log_in(settings)


def free(settings: FreeSettings) -> None:
    """Show how many cards of each model can be booked, from when, and how many nobody uses now.

    A card that can be booked need not be idle: pods without a booking make room for who books.

    Examples:

      carrel free

      carrel free a6000 --days 14
    """
    from carrel.cli.booking_commands import free

    free(settings)


def book(settings: BookSettings) -> None:
    """Book cards of a model: from now, or from an instant on.

    Examples:

      carrel book a6000 --days 5 --dry-run

      carrel book a6000 --days 5 --from 2026-12-12

      carrel book a100 --cards 2 --until 2026-12-20T18:00 --note "ablation runs"
    """
    from carrel.cli.booking_commands import book

    book(settings)


def list_(settings: ListSettings) -> None:
    """List your bookings, or everybody's.

    Examples:

      carrel list

      carrel list -A --state active -o csv
    """
    from carrel.cli.booking_commands import list_bookings

    list_bookings(settings)


def show(settings: OneSettings) -> None:
    """Show one booking: yours that runs or is planned, or any by its id.

    Examples:

      carrel show

      carrel show 4f2a9c1e -o yaml
    """
    from carrel.cli.booking_commands import show_one

    show_one(settings)


def extend(settings: ExtendSettings) -> None:
    """Let a booking end later, or earlier.

    Examples:

      carrel extend --days 2

      carrel extend 4f2a9c1e --until 2026-12-20 --dry-run
    """
    from carrel.cli.booking_commands import extend

    extend(settings)


def cancel(settings: CancelSettings) -> None:
    """Cancel a booking. What follows is shown first, and you are asked.

    Examples:

      carrel cancel

      carrel cancel 4f2a9c1e --yes
    """
    from carrel.cli.booking_commands import cancel

    cancel(settings)


def usage(settings: UsageSettings) -> None:
    """Show who had booked how much: yourself, or everybody if you are a lab admin.

    Examples:

      carrel usage

      carrel usage --since 2026-11-01 --until 2026-12-01 -o csv
    """
    from carrel.cli.booking_commands import show_usage

    show_usage(settings)
