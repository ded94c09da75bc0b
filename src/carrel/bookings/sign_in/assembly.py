"""Makes the authenticator that the settings describe."""

import ipaddress
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import aiohttp

from carrel.bookings.people import SERVICE_ACCOUNT, People, RoleOptions
from carrel.bookings.sign_in.authenticator import Authenticator, SignInMethods, SignInOptions
from carrel.bookings.sign_in.hub import HubClient, HubTokens
from carrel.bookings.sign_in.oidc import OidcClient
from carrel.bookings.sign_in.request_guard import PersonLimiter, RequestLimits
from carrel.bookings.sign_in.settings import Names, SignInSettings
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.kubernetes.cluster import Cluster


def authenticator_from(
    settings: SignInSettings,
    people: People,
    http: aiohttp.ClientSession,
    cluster: Cluster | None,
    now: Callable[[], datetime],
) -> Authenticator:
    """`mistakes` must have found none in these settings. Without a cluster, its tokens are not accepted."""

    roles, options = _roles(settings), _options(settings)
    oidc = OidcClient(settings, http, now) if settings.oidc_issuer else None
    hub = HubTokens(HubClient(settings, http), roles, time.monotonic) if settings.hub_url else None
    reviewer = None
    if cluster is not None:
        audience, prefix = settings.token_audience, settings.kubernetes_user_prefix
        reviewer = TokenReviewer(cluster, roles, time.monotonic, audience, prefix)
    methods = SignInMethods(oidc, reviewer, settings.dev, hub)
    limiter, proxies = PersonLimiter(time.monotonic), request_limits(settings).trusted_proxies
    return Authenticator(people, roles, methods, options, limiter, now, proxies)


def request_limits(settings: SignInSettings) -> RequestLimits:
    return RequestLimits(trusted_proxies=tuple(ipaddress.ip_network(each) for each in settings.trusted_proxy or ()))


def _roles(settings: SignInSettings) -> RoleOptions:
    return RoleOptions(
        lab_admins=_set(settings.lab_admin),
        platform_admins=_set(settings.platform_admin),
        lab_admin_groups=_set(settings.lab_admin_group),
        platform_admin_groups=_set(settings.platform_admin_group),
        member_groups=_set(settings.member_group),
        services=frozenset(SERVICE_ACCOUNT + name for name in settings.service or ()),
        hubs=settings.spawner_accounts(),
    )


def _options(settings: SignInSettings) -> SignInOptions:
    return SignInOptions(
        settings.public_url.rstrip("/"),
        timedelta(hours=settings.session_hours),
        timedelta(days=settings.token_days),
        settings.base_path.rstrip("/"),
    )


def _set(names: Names) -> frozenset[str]:
    return frozenset(names or ())
