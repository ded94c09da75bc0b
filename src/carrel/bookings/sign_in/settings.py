"""The settings of the sign-in, and the authenticator that they describe. All mistakes are reported at once."""

import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    import aiohttp

    from carrel.bookings.people import People
    from carrel.bookings.sign_in import Authenticator, RequestLimits, RoleOptions, SignInOptions
    from carrel.kubernetes.cluster import Cluster

Names = list[str] | None
"""An option that may be given several times; in the environment, words separated by spaces."""


@dataclass(frozen=True)
class SignInSettings:
    """Who may sign in, and with which role."""

    public_url: Annotated[
        str, typer.Option(help="URL of this service, as browsers see it.", envvar="CARREL_PUBLIC_URL")
    ] = ""
    """Never taken from a request, which anybody can forge. With https, cookies are secure."""
    dev: Annotated[bool, typer.Option(help="Everybody on this machine may sign in as anybody.")] = False
    """For trials: there is no password."""
    oidc_issuer: Annotated[
        str,
        typer.Option(help="OpenID Connect provider, such as https://login.lab.org.", envvar="CARREL_OIDC_ISSUER"),
    ] = ""
    oidc_client_id: Annotated[str, typer.Option(help="Client ID at the provider.", envvar="CARREL_OIDC_CLIENT_ID")] = ""
    oidc_client_secret: Annotated[
        str,
        typer.Option(help="Client secret; better in the environment.", envvar="CARREL_OIDC_CLIENT_SECRET"),
    ] = ""
    """Everybody who may list processes can see options."""
    oidc_scopes: Annotated[str, typer.Option(help="Scopes to request there.", envvar="CARREL_OIDC_SCOPES")] = (
        "openid email profile"
    )
    """Some providers send groups only if a scope requests them."""
    oidc_email_claim: Annotated[
        str, typer.Option(help="Claim with the e-mail address.", envvar="CARREL_OIDC_EMAIL_CLAIM")
    ] = "email"
    oidc_groups_claim: Annotated[
        str, typer.Option(help="Claim with the groups.", envvar="CARREL_OIDC_GROUPS_CLAIM")
    ] = "groups"
    member_group: Annotated[
        Names, typer.Option(help="Group whose members may book; without it, everybody.", envvar="CARREL_MEMBER_GROUPS")
    ] = None
    lab_admin_group: Annotated[Names, typer.Option(help="Group of lab admins.", envvar="CARREL_LAB_ADMIN_GROUPS")] = (
        None
    )
    platform_admin_group: Annotated[
        Names, typer.Option(help="Group of platform admins.", envvar="CARREL_PLATFORM_ADMIN_GROUPS")
    ] = None
    lab_admin: Annotated[Names, typer.Option(help="E-mail address of a lab admin.", envvar="CARREL_LAB_ADMINS")] = None
    platform_admin: Annotated[
        Names, typer.Option(help="E-mail address of a platform admin.", envvar="CARREL_PLATFORM_ADMINS")
    ] = None
    """The first one must be named here or by a group: platform admins grant the other roles."""
    service: Annotated[
        Names,
        typer.Option(help="ServiceAccount (NAMESPACE:NAME) that may ask about everybody.", envvar="CARREL_SERVICES"),
    ] = None
    """Carrel's own webhook and controller. Other ServiceAccounts are refused: whoever creates one could book as it."""
    token_audience: Annotated[
        str, typer.Option(help="Audience that tokens of the cluster must have.", envvar="CARREL_TOKEN_AUDIENCE")
    ] = ""
    """Without it the API server's own tokens are accepted. With it, a token for Carrel is useless elsewhere."""
    kubernetes_user_prefix: Annotated[
        str,
        typer.Option(help="Prefix of user names, such as oidc:.", envvar="CARREL_KUBERNETES_USER_PREFIX"),
    ] = ""
    session_hours: Annotated[
        float, typer.Option(help="How long a session lasts, in hours.", min=0.1, max=720, envvar="CARREL_SESSION_HOURS")
    ] = 12.0
    token_days: Annotated[
        int, typer.Option(help="Longest lifetime of a token, in days.", min=1, max=3650, envvar="CARREL_TOKEN_DAYS")
    ] = 90
    trusted_proxy: Annotated[
        Names,
        typer.Option(help="Network of a proxy whose X-Forwarded-For is trusted.", envvar="CARREL_TRUSTED_PROXIES"),
    ] = None
    """For the rate limit per address. Without it an ingress counts as one caller."""

    def roles(self) -> "RoleOptions":
        from carrel.bookings.sign_in.roles import SERVICE_ACCOUNT, RoleOptions

        return RoleOptions(
            lab_admins=_set(self.lab_admin),
            platform_admins=_set(self.platform_admin),
            lab_admin_groups=_set(self.lab_admin_group),
            platform_admin_groups=_set(self.platform_admin_group),
            member_groups=_set(self.member_group),
            services=frozenset(SERVICE_ACCOUNT + name for name in self.service or ()),
        )

    def sign_in_options(self) -> "SignInOptions":
        from carrel.bookings.sign_in import SignInOptions

        return SignInOptions(
            self.public_url.rstrip("/"), timedelta(hours=self.session_hours), timedelta(days=self.token_days)
        )

    def limits(self) -> "RequestLimits":
        from carrel.bookings.sign_in import RequestLimits

        return RequestLimits(trusted_proxies=tuple(ipaddress.ip_network(each) for each in self.trusted_proxy or ()))


def mistakes(settings: SignInSettings, bind_address: str) -> Iterable[str]:
    """Everything that is wrong with these settings."""
    if settings.dev and not is_loopback(bind_address):
        yield f"--dev lets everybody in who can reach {bind_address}; use it with 127.0.0.1 only"
    if settings.dev and settings.oidc_issuer:
        yield "--dev and --oidc-issuer exclude each other"
    public = urlsplit(settings.public_url)
    if settings.dev and settings.public_url and not is_loopback(public.hostname or ""):
        yield f"--dev lets everybody in who can reach {settings.public_url}; use it on this machine only"
    if settings.public_url and (public.scheme not in ("http", "https") or not public.netloc or public.path.strip("/")):
        yield f"--public-url is {settings.public_url!r}; expected something like https://gpus.lab.org"
    if settings.oidc_issuer:
        issuer = urlsplit(settings.oidc_issuer)
        if issuer.scheme != "https" and not is_loopback(issuer.hostname or ""):
            yield "--oidc-issuer must be https: whoever answers there decides who people are"
        if not settings.oidc_client_id:
            yield "--oidc-issuer needs --oidc-client-id"
        if not settings.public_url:
            yield "--oidc-issuer needs --public-url: the provider redirects people there"
    for name in settings.service or ():
        if name.count(":") != 1 or name.startswith(":") or name.endswith(":"):
            yield f"--service is {name!r}; expected NAMESPACE:NAME"
    for network in settings.trusted_proxy or ():
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield f"--trusted-proxy: {error}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class SignInContext:
    """What the authenticator needs of its surroundings."""

    people: "People"
    http: "aiohttp.ClientSession"
    cluster: "Cluster | None"
    """None: tokens of a cluster are not accepted."""
    now: Callable[[], datetime]
    clock: Callable[[], float] = time.monotonic


def authenticator_from(settings: SignInSettings, context: SignInContext) -> "Authenticator":
    """`mistakes` must have found none in these settings."""
    from carrel.bookings.sign_in import (
        PER_PERSON,
        Authenticator,
        OidcClient,
        OidcOptions,
        RateLimiter,
        SignInMethods,
        TokenReviewer,
        TokenReviewOptions,
    )

    roles, options = settings.roles(), settings.sign_in_options()
    sign_in = kubernetes = None
    if settings.oidc_issuer:
        provider = OidcOptions(
            issuer=settings.oidc_issuer,
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret,
            redirect_uri=f"{options.public_url}/sign-in/callback",
            scopes=tuple(settings.oidc_scopes.split()),
            email_claim=settings.oidc_email_claim,
            groups_claim=settings.oidc_groups_claim,
        )
        sign_in = OidcClient(provider, context.http, context.now)
    if context.cluster is not None:
        review_options = TokenReviewOptions(settings.token_audience, settings.kubernetes_user_prefix)
        kubernetes = TokenReviewer(context.cluster, roles, context.clock, review_options)
    methods = SignInMethods(sign_in, kubernetes, settings.dev)
    return Authenticator(context.people, roles, methods, options, RateLimiter(PER_PERSON, context.clock), context.now)


def _set(names: Names) -> frozenset[str]:
    return frozenset(names or ())
