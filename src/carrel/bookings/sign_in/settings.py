"""The settings of the sign-in. All mistakes are reported at once."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from carrel.option_fields import option, setting
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address, normal
from carrel.settings import HubSettings

Names = list[str] | None
"""An option that may be given several times; in the environment, words separated by spaces."""
_BASE_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?")


@dataclass(frozen=True)
class SignInSettings(HubSettings):
    """Who may sign in, and with which role."""

    public_url: str = setting("", "URL of this service, as browsers see it.")
    """Never taken from a request, which anybody can forge. With https, cookies are secure."""
    base_path: str = setting("", "Path under which browsers see this service, such as /services/carrel.")
    """A JupyterHub shows its services under its own host, and its proxy does not take the path off."""
    dev: bool = option(False, "Everybody on this machine may sign in as anybody.")
    """For trials: there is no password."""
    oidc_issuer: str = setting("", "OpenID Connect provider, such as https://login.lab.org.")
    oidc_client_id: str = setting("", "Client ID at the provider.")
    oidc_client_secret: str = setting("", "Client secret; better in the environment.")
    """Everybody who may list processes can see options. A public client has none: PKCE alone protects the code."""
    oidc_scopes: str = setting("openid email profile", "Scopes to request there.")
    """Some providers send groups only if a scope requests them."""
    oidc_email_claim: str = setting("email", "Claim with the e-mail address.")
    oidc_groups_claim: str = setting("groups", "Claim with the groups.")
    hub_url: str = setting("", "JupyterHub to sign in with, as browsers see it, such as https://hub.lab.org.")
    """Its users sign in here without another password, and their own tokens are accepted."""
    hub_api_url: str = setting(
        "", "API of the hub for this service, such as http://hub.jhub:8081/hub/api; default: HUB_URL/hub/api."
    )
    """Within a cluster the address that browsers use may not be reachable."""
    hub_client_id: str = setting("service-carrel", "Client ID at the hub: service-NAME.")
    hub_client_secret: str = setting(
        "", "The api_token of the service in the hub's configuration; better in the environment.", show_default=False
    )
    """Everybody who may list processes can see options."""
    member_group: Names = option(
        None, "Group whose members may book; without it, everybody.", envvar="CARREL_MEMBER_GROUPS"
    )
    lab_admin_group: Names = option(None, "Group of lab admins.", envvar="CARREL_LAB_ADMIN_GROUPS")
    platform_admin_group: Names = option(None, "Group of platform admins.", envvar="CARREL_PLATFORM_ADMIN_GROUPS")
    lab_admin: Names = option(None, "E-mail address of a lab admin.", envvar="CARREL_LAB_ADMINS")
    platform_admin: Names = option(None, "E-mail address of a platform admin.", envvar="CARREL_PLATFORM_ADMINS")
    """The first one must be named here or by a group: platform admins grant the other roles."""
    service: Names = option(
        None, "ServiceAccount (NAMESPACE:NAME) that may ask about everybody.", envvar="CARREL_SERVICES"
    )
    """Carrel's own webhook and controller. Other ServiceAccounts are refused: whoever creates one could book as it."""
    token_audience: str = setting("", "Audience that tokens of the cluster must have.")
    """Without it the API server's own tokens are accepted. With it, a token for Carrel is useless elsewhere."""
    kubernetes_user_prefix: str = setting("", "Prefix of user names, such as oidc:.")
    session_hours: float = setting(12.0, "How long a session lasts, in hours.", min=0.1, max=720)
    token_days: int = setting(90, "Longest lifetime of a token, in days.", min=1, max=3650)
    trusted_proxy: Names = option(
        None, "Network of a proxy whose X-Forwarded-For is trusted.", envvar="CARREL_TRUSTED_PROXIES"
    )
    """For the rate limit per address. Without it an ingress counts as one caller."""

    @property
    def link(self) -> str:
        """The address of the service for people; empty: it is not known."""
        return f"{self.public_url.rstrip('/')}{self.base_path.rstrip('/')}" if self.public_url else ""


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
        expected = "expected something like https://gpus.lab.org; a path belongs to --base-path"
        yield f"--public-url is {settings.public_url!r}; {expected}"
    if not _BASE_PATH.fullmatch(settings.base_path):
        yield f"--base-path is {settings.base_path!r}; expected something like /services/carrel"
    if settings.oidc_issuer:
        issuer = urlsplit(settings.oidc_issuer)
        if issuer.scheme != "https" and not is_loopback(issuer.hostname or ""):
            yield "--oidc-issuer must be https: whoever answers there decides who people are"
        if not settings.oidc_client_id:
            yield "--oidc-issuer needs --oidc-client-id"
        if not settings.public_url:
            yield "--oidc-issuer needs --public-url: the provider redirects people there"
    yield from _mistakes_about_hub(settings)
    for name, given in (("--lab-admin", settings.lab_admin), ("--platform-admin", settings.platform_admin)):
        for email in given or ():
            if not is_address(normal(email)):
                yield f"{name} is {email!r}; expected an e-mail address such as ada@lab.org"
    for name in settings.service or ():
        if name.count(":") != 1 or name.startswith(":") or name.endswith(":"):
            yield f"--service is {name!r}; expected NAMESPACE:NAME"
    for network in settings.trusted_proxy or ():
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield f"--trusted-proxy: {error}"


def _mistakes_about_hub(settings: SignInSettings) -> Iterable[str]:
    try:
        settings.hub_people()
    except Malformed as malformed:
        yield str(malformed)
    if not settings.hub_url:
        return
    for name, url in (("--hub-url", settings.hub_url), ("--hub-api-url", settings.hub_api_url)):
        address = urlsplit(url)
        if url and (address.scheme not in ("http", "https") or not address.netloc):
            yield f"{name} is {url!r}; expected something like https://hub.lab.org"
    hub = urlsplit(settings.hub_url)
    if hub.scheme == "http" and not is_loopback(hub.hostname or ""):
        yield "--hub-url must be https: whoever answers there decides who people are"
    if settings.dev:
        yield "--dev and --hub-url exclude each other"
    if not settings.hub_client_secret:
        yield "--hub-url needs --hub-client-secret, the api_token of this service in the hub's configuration"
    if not settings.public_url:
        yield "--hub-url needs --public-url: the hub redirects people there"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
