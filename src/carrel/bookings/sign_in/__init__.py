"""Sign-in: who sends a request, and what they may do.

Reading order:

    authenticator                    finds the person of each request, from its session, token or cluster token
    secrets roles                    the secrets that people carry; which roles a person has
    oidc hub token_review            sign-in with an OpenID Connect provider, with a JupyterHub; tokens of the cluster
    reviewed_tokens                  tokens that the cluster or a hub is asked about, and their answers for a minute
    routes account_routes sign_in_pages     the HTTP routes: sign in and out, tokens, roles; their small pages
    request_guard rate_limiter       limits for every request, and security headers
    settings                         the options, and the authenticator that they describe
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carrel.bookings.sign_in.authenticator import (
        Authenticator,
        CurrentPerson,
        CurrentPersonOrHub,
        NotSignedIn,
        SignInMethods,
        SignInOptions,
        current_person,
        forbidden,
        require_scope,
    )
    from carrel.bookings.sign_in.hub import HubClient, HubOptions, HubTokens
    from carrel.bookings.sign_in.oidc import OidcClient, OidcOptions
    from carrel.bookings.sign_in.rate_limiter import PersonLimiter, Rate, RateLimiter
    from carrel.bookings.sign_in.request_guard import PER_ADDRESS, RequestGuard, RequestLimits
    from carrel.bookings.sign_in.roles import RoleOptions
    from carrel.bookings.sign_in.routes import install_sign_in
    from carrel.bookings.sign_in.token_review import TokenReviewer, TokenReviewOptions

__all__ = [
    "PER_ADDRESS",
    "Authenticator",
    "CurrentPerson",
    "CurrentPersonOrHub",
    "HubClient",
    "HubOptions",
    "HubTokens",
    "NotSignedIn",
    "OidcClient",
    "OidcOptions",
    "PersonLimiter",
    "Rate",
    "RateLimiter",
    "RequestGuard",
    "RequestLimits",
    "RoleOptions",
    "SignInMethods",
    "SignInOptions",
    "TokenReviewOptions",
    "TokenReviewer",
    "current_person",
    "forbidden",
    "install_sign_in",
    "require_scope",
]

_MODULES = {
    "authenticator": (
        "Authenticator",
        "CurrentPerson",
        "CurrentPersonOrHub",
        "NotSignedIn",
        "SignInMethods",
        "SignInOptions",
        "current_person",
        "forbidden",
        "require_scope",
    ),
    "hub": ("HubClient", "HubOptions", "HubTokens"),
    "oidc": ("OidcClient", "OidcOptions"),
    "rate_limiter": ("PersonLimiter", "Rate", "RateLimiter"),
    "request_guard": ("PER_ADDRESS", "RequestGuard", "RequestLimits"),
    "roles": ("RoleOptions",),
    "routes": ("install_sign_in",),
    "token_review": ("TokenReviewer", "TokenReviewOptions"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports the module of a name when it is asked for. Every command reads `settings` from this package, to know the
    options of the booking service; the frameworks behind the other modules would make all of them start late."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
