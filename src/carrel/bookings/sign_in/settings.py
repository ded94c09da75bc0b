"""The settings about people, and the identity that is made of them. Everything wrong with them is told at once."""

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
    from carrel.bookings.sign_in import Identity, Limits, Premises, RoleBook
    from carrel.kubernetes.cluster import Cluster

Names = list[str] | None
"""An option that may be given several times; in the environment, words with spaces between."""


@dataclass(frozen=True)
class PeopleSettings:
    """Who may come in, as whom."""

    public_url: Annotated[
        str, typer.Option(help="Address by which browsers find this service.", envvar="CARREL_PUBLIC_URL")
    ] = ""
    """Never taken from a request, which anybody may write. With https, cookies are secure."""
    dev: Annotated[bool, typer.Option(help="Let everybody on this machine say who they are. Only on loopback.")] = False
    """For trying it: there is no password."""
    oidc_issuer: Annotated[
        str, typer.Option(help="OpenID Connect provider, such as https://login.lab.org.", envvar="CARREL_OIDC_ISSUER")
    ] = ""
    oidc_client_id: Annotated[str, typer.Option(help="Who we are to it.", envvar="CARREL_OIDC_CLIENT_ID")] = ""
    oidc_client_secret: Annotated[
        str, typer.Option(help="Our secret there; better given by the variable.", envvar="CARREL_OIDC_CLIENT_SECRET")
    ] = ""
    """Options are seen by everybody who may list processes."""
    oidc_scopes: Annotated[str, typer.Option(help="What is asked of the provider.", envvar="CARREL_OIDC_SCOPES")] = (
        "openid email profile"
    )
    """Some providers tell groups only if a scope asks for them."""
    oidc_email_claim: Annotated[
        str, typer.Option(help="The claim that holds the address.", envvar="CARREL_OIDC_EMAIL_CLAIM")
    ] = "email"
    oidc_groups_claim: Annotated[
        str, typer.Option(help="The claim that holds the groups.", envvar="CARREL_OIDC_GROUPS_CLAIM")
    ] = "groups"
    member_group: Annotated[
        Names, typer.Option(help="Group whose people may book; without any, all may.", envvar="CARREL_MEMBER_GROUPS")
    ] = None
    lab_admin_group: Annotated[Names, typer.Option(help="Group of lab admins.", envvar="CARREL_LAB_ADMIN_GROUPS")] = (
        None
    )
    platform_admin_group: Annotated[
        Names, typer.Option(help="Group of platform admins.", envvar="CARREL_PLATFORM_ADMIN_GROUPS")
    ] = None
    lab_admin: Annotated[Names, typer.Option(help="Address of a lab admin.", envvar="CARREL_LAB_ADMINS")] = None
    platform_admin: Annotated[
        Names, typer.Option(help="Address of a platform admin.", envvar="CARREL_PLATFORM_ADMINS")
    ] = None
    """The first one has to be named here, or by a group: roles are given by platform admins."""
    service: Annotated[
        Names,
        typer.Option(help="ServiceAccount, as NAMESPACE:NAME, that may ask about everybody.", envvar="CARREL_SERVICES"),
    ] = None
    """Carrel's own webhook and controller. Other ServiceAccounts are nobody: whoever makes one could book as it."""
    token_audience: Annotated[
        str, typer.Option(help="Audience that tokens of the cluster must have.", envvar="CARREL_TOKEN_AUDIENCE")
    ] = ""
    """Without it the API server's own tokens are accepted; with it a token for us is worth nothing elsewhere."""
    kubernetes_user_prefix: Annotated[
        str,
        typer.Option(help="What the API server puts before addresses.", envvar="CARREL_KUBERNETES_USER_PREFIX"),
    ] = ""
    session_hours: Annotated[
        float, typer.Option(help="How long a sign-in lasts.", min=0.1, max=720, envvar="CARREL_SESSION_HOURS")
    ] = 12.0
    token_days: Annotated[
        int, typer.Option(help="How long a token may last.", min=1, max=3650, envvar="CARREL_TOKEN_DAYS")
    ] = 90
    trusted_proxy: Annotated[
        Names,
        typer.Option(help="Network of a proxy whose X-Forwarded-For is true.", envvar="CARREL_TRUSTED_PROXIES"),
    ] = None
    """For the pace per address. Without it an ingress would count as one caller."""

    def roles(self) -> "RoleBook":
        from carrel.bookings.sign_in.roles import SERVICE_ACCOUNT, RoleBook

        return RoleBook(
            lab_admins=_set(self.lab_admin),
            platform_admins=_set(self.platform_admin),
            lab_admin_groups=_set(self.lab_admin_group),
            platform_admin_groups=_set(self.platform_admin_group),
            member_groups=_set(self.member_group),
            services=frozenset(SERVICE_ACCOUNT + name for name in self.service or ()),
        )

    def premises(self) -> "Premises":
        from carrel.bookings.sign_in import Premises

        return Premises(
            self.public_url.rstrip("/"), timedelta(hours=self.session_hours), timedelta(days=self.token_days)
        )

    def limits(self) -> "Limits":
        from carrel.bookings.sign_in import Limits

        return Limits(trusted_proxies=tuple(ipaddress.ip_network(each) for each in self.trusted_proxy or ()))


def mistakes(settings: PeopleSettings, bind_address: str) -> Iterable[str]:
    """What keeps these settings from being used, in words."""
    if settings.dev and not is_loopback(bind_address):
        yield f"--dev lets everybody in who reaches {bind_address}: it is only for 127.0.0.1"
    if settings.dev and settings.oidc_issuer:
        yield "--dev and --oidc-issuer exclude each other"
    public = urlsplit(settings.public_url)
    if settings.dev and settings.public_url and not is_loopback(public.hostname or ""):
        yield f"--dev lets everybody in who reaches {settings.public_url}: it is only for this machine"
    if settings.public_url and (public.scheme not in ("http", "https") or not public.netloc or public.path.strip("/")):
        yield f"--public-url is {settings.public_url!r}; expected something like https://gpus.lab.org"
    if settings.oidc_issuer:
        issuer = urlsplit(settings.oidc_issuer)
        if issuer.scheme != "https" and not is_loopback(issuer.hostname or ""):
            yield "--oidc-issuer must be https: who answers there says who people are"
        if not settings.oidc_client_id:
            yield "--oidc-issuer needs --oidc-client-id"
        if not settings.public_url:
            yield "--oidc-issuer needs --public-url, to which the provider sends people back"
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
class Surroundings:
    """What identity is made on."""

    people: "People"
    http: "aiohttp.ClientSession"
    cluster: "Cluster | None"
    """None: no cluster vouches for anybody."""
    now: Callable[[], datetime]
    clock: Callable[[], float] = time.monotonic


def identity_of(settings: PeopleSettings, around: Surroundings) -> "Identity":
    """Of settings in which there are no mistakes."""
    from carrel.bookings.sign_in import PER_PERSON, Buckets, Identity, Kubernetes, Means, Provider, SignIn, Vouching

    roles, premises = settings.roles(), settings.premises()
    sign_in = kubernetes = None
    if settings.oidc_issuer:
        provider = Provider(
            issuer=settings.oidc_issuer,
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret,
            redirect_uri=f"{premises.public_url}/sign-in/callback",
            scopes=tuple(settings.oidc_scopes.split()),
            email_claim=settings.oidc_email_claim,
            groups_claim=settings.oidc_groups_claim,
        )
        sign_in = SignIn(provider, around.http, around.now)
    if around.cluster is not None:
        vouching = Vouching(settings.token_audience, settings.kubernetes_user_prefix)
        kubernetes = Kubernetes(around.cluster, roles, around.clock, vouching)
    means = Means(sign_in, kubernetes, settings.dev)
    return Identity(around.people, roles, means, premises, Buckets(PER_PERSON, around.clock), around.now)


def _set(names: Names) -> frozenset[str]:
    return frozenset(names or ())
