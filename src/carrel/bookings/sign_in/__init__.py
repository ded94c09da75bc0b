"""Sign-in: who sends a request, and what they may do.

Reading order:

    authenticator                    finds the person of each request, from its session, token or cluster token
    secrets roles                    the secrets that people carry; which roles a person has
    oidc hub token_review            sign-in with an OpenID Connect provider, with a JupyterHub; tokens of the cluster
    routes account_routes sign_in_pages     the HTTP routes: sign in and out, tokens, roles; their small pages
    request_guard rate_limiter       limits for every request, and security headers
    settings                         the options, and the authenticator that they describe
"""

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
from carrel.bookings.sign_in.rate_limiter import Rate, RateLimiter
from carrel.bookings.sign_in.request_guard import PER_ADDRESS, PER_PERSON, RequestGuard, RequestLimits
from carrel.bookings.sign_in.roles import RoleOptions
from carrel.bookings.sign_in.routes import install_sign_in
from carrel.bookings.sign_in.token_review import TokenReviewer, TokenReviewOptions

__all__ = [
    "PER_ADDRESS",
    "PER_PERSON",
    "Authenticator",
    "CurrentPerson",
    "CurrentPersonOrHub",
    "HubClient",
    "HubOptions",
    "HubTokens",
    "NotSignedIn",
    "OidcClient",
    "OidcOptions",
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
