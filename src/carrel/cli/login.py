"""`carrel login`. The work is done in `browser_login`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from carrel.cli.options import BookingServiceSettings, Words


@dataclass(frozen=True)
class LoginSettings(BookingServiceSettings):
    address: Annotated[str, typer.Argument(help="URL of the booking service, such as https://gpus.lab.org.")] = ""
    scope: Annotated[Words, typer.Option(help="What it may do: read, book, admin; default: read and book.")] = None
    """Admins do not need admin rights for everyday work."""
    browser: Annotated[bool, typer.Option(help="Open a browser; otherwise only print the URL.")] = True
    forget: Annotated[bool, typer.Option("--forget", help="Log out: revoke the token and delete the login.")] = False


def login(settings: LoginSettings) -> None:
    """Log in to the booking service with a browser, and save the login.

    With --token (or CARREL_TOKEN) it checks and saves that token instead.

    Examples:

      carrel login https://gpus.lab.org

      CARREL_TOKEN=carrel_… carrel login https://gpus.lab.org

      carrel login --forget
    """
    from carrel.cli.browser_login import log_in, log_out

    if settings.forget:
        log_out()
    else:
        log_in(settings)
