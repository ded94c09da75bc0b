"""The settings of the sign-in that are not in the configuration: secrets, and the way in for trials."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from carrel.configuration.contradictions import is_loopback
from carrel.configuration.schema import Bookings
from carrel.option_fields import option, secret


@dataclass(frozen=True)
class SignInSettings:
    dev: bool = option(False, "Everybody on this machine may sign in as anybody.")
    """For trials: there is no password."""
    oidc_client_secret: str = secret("Client secret at the OpenID Connect provider.")
    """A public client has none: PKCE alone protects the code."""
    hub_client_secret: str = secret("The api_token of the service in the hub's configuration.")
    """By it the hub knows Carrel."""


def mistakes(settings: SignInSettings, bookings: Bookings, bind_address: str) -> Iterable[str]:
    """Say everything in these settings that the configuration does not allow."""
    oidc, hub = bookings.sign_in.oidc, bookings.sign_in.hub
    if settings.dev and not is_loopback(bind_address):
        yield f"--dev lets everybody in who can reach {bind_address}; use it with 127.0.0.1 only"
    if settings.dev and bookings.public_url and not is_loopback(urlsplit(bookings.public_url).hostname or ""):
        yield f"--dev lets everybody in who can reach {bookings.public_url}; use it on this machine only"
    for name, url in (("oidc.issuer", oidc.issuer), ("hub.url", hub.url)):
        if settings.dev and url:
            yield f"--dev and bookings.signIn.{name} exclude each other"
    if hub.url and not settings.hub_client_secret:
        yield (
            "bookings.signIn.hub.url needs CARREL_HUB_CLIENT_SECRET: the api_token of this"
            " service in the hub's configuration"
        )
