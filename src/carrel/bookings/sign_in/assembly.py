"""Makes the authenticator that the settings describe."""

import ipaddress
import time
from collections.abc import Callable
from datetime import datetime

import aiohttp

from carrel.bookings.people import RoleOptions
from carrel.bookings.sign_in.authenticator import Authenticator, SignInMethods, SignInOptions
from carrel.bookings.sign_in.hub import HubClient, HubTokens
from carrel.bookings.sign_in.oidc import OidcClient
from carrel.bookings.sign_in.request_guard import PersonLimiter, RequestLimits
from carrel.bookings.sign_in.settings import SignInSettings
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.bookings.store.people import SqlPeople
from carrel.configuration.schema import Bookings, Configuration, SignIn
from carrel.kubernetes.cluster import Cluster


def authenticator_from(
    configuration: Configuration,
    settings: SignInSettings,
    people: SqlPeople,
    http: aiohttp.ClientSession,
    cluster: Cluster | None,
    now: Callable[[], datetime],
) -> Authenticator:
    """`mistakes` must have found none in these settings. Without a cluster, its tokens are not accepted."""
    bookings, roles = configuration.bookings, _roles(configuration)
    sign_in, users = bookings.sign_in, configuration.hubs.people()
    oidc = OidcClient(bookings, settings.oidc_client_secret, http, now) if sign_in.oidc.issuer else None
    hub = None
    if sign_in.hub.url:
        hub = HubTokens(HubClient(bookings, users, settings.hub_client_secret, http), roles, time.monotonic)
    reviewer = None
    if cluster is not None:
        prefix = configuration.pods.username_prefix
        reviewer = TokenReviewer(cluster, roles, time.monotonic, sign_in.token_audience, prefix)
    methods = SignInMethods(oidc, reviewer, settings.dev, hub)
    limiter, proxies = PersonLimiter(time.monotonic), request_limits(sign_in).trusted_proxies
    return Authenticator(people, roles, methods, _options(bookings), limiter, now, proxies)


def request_limits(sign_in: SignIn) -> RequestLimits:
    return RequestLimits(trusted_proxies=tuple(ipaddress.ip_network(each) for each in sign_in.trusted_proxies))


def _roles(configuration: Configuration) -> RoleOptions:
    roles = configuration.bookings.roles
    return RoleOptions(
        lab_admins=frozenset(roles.lab_admins),
        platform_admins=frozenset(roles.platform_admins),
        lab_admin_groups=frozenset(roles.lab_admin_groups),
        platform_admin_groups=frozenset(roles.platform_admin_groups),
        member_groups=frozenset(roles.member_groups),
        hubs=configuration.hubs.named,
    )


def _options(bookings: Bookings) -> SignInOptions:
    return SignInOptions(bookings.link.removesuffix(bookings.base_path), bookings.base_path)
