"""`carrel login`. The work is done in `browser_login`."""

from dataclasses import dataclass

from carrel.cli.options import BookingServiceSettings, Words
from carrel.option_fields import argument, option


@dataclass(frozen=True)
class LoginSettings(BookingServiceSettings):
    address: str = argument("", "URL of the booking service, such as https://gpus.lab.org.")
    scope: Words = option(None, "What it may do: read, book, admin; default: read and book.")
    """Admins do not need admin rights for everyday work."""
    browser: bool = option(True, "Open a browser; otherwise only print the URL.")
    forget: bool = option(False, "Log out: revoke the token and delete the login.", "--forget")


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
