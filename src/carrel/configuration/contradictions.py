"""What is wrong with a configuration whose fields can all be read: values that exclude each other or mean nothing."""

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from carrel.configuration.gpu_memory import MemoryResource as Resource
from carrel.configuration.schema import ANY_ACCOUNT, Configuration, Notifications, PodsOfNobody
from carrel.dialects.options import DeviceList
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.printable import printable
from carrel.parsing.time import words, zone_named

NO_SECRETS = ", without a password: secrets are never in the configuration"
_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?")
_HOST = re.compile(r"(\*\.[a-z0-9-]+\.)?[a-z0-9-]+(\.[a-z0-9-]+)*(:[0-9]{1,5})?|\[[0-9a-f:]+\](:[0-9]{1,5})?")
"""A pattern has two names at least: below `*.com` is everything."""
_ACCOUNT = re.compile(r"system:serviceaccount:[a-z0-9.-]+:[a-z0-9.-]+")


def contradictions(of: Configuration) -> Iterator[str]:
    """Say everything that is wrong, each with the name of the field."""
    yield from _about_times(of)
    if of.nodes.device_list is not DeviceList.VARIABLE and of.memory.resource is Resource.NODE:
        yield (
            f"memory.resource: node and nodes.deviceList: {of.nodes.device_list.value} exclude each other, because the"
            " kubelet hands over what a plugin allocates: write plugin and, for large GPUs, memory.unit: GiB"
        )
    if not of.pods.schedulers:
        yield "pods.schedulers is empty: the webhook gives GPU pods to the first of them"
    yield from _about_people(of)
    yield from _about_sign_in(of)
    yield from _about_notifications(of.notifications)


def _about_times(of: Configuration) -> Iterator[str]:
    if zone_named(of.lab.timezone) is None:
        yield f"lab.timezone is {of.lab.timezone!r}; expected an IANA zone such as Europe/Stockholm"
    rules = of.bookings.rules
    if rules.min_duration > rules.max_duration:
        least, most = words(rules.min_duration), words(rules.max_duration)
        yield f"bookings.rules.minDuration is {least}, which maxDuration {most} does not allow"


def _about_people(of: Configuration) -> Iterator[str]:
    for account in sorted(of.hubs.named):
        if not _ACCOUNT.fullmatch(account):
            yield f"hubs.accounts has {account!r}; expected system:serviceaccount:NAMESPACE:NAME"
    if ANY_ACCOUNT in of.hubs.accounts and of.pods.strict:
        yield "hubs.accounts: [any] and pods.strict exclude each other: whoever writes a name on a pod would own it"
    if of.pods.strict and of.tiers.pods_of_nobody is PodsOfNobody.KEEP:
        yield "tiers.podsOfNobody: keep and pods.strict exclude each other: strict refuses these pods"
    if of.hubs.domain and not is_address(f"a@{of.hubs.domain}"):
        yield f"hubs.usernameDomain is {of.hubs.username_domain!r}; expected a domain such as lab.example"
    for user, address in of.hubs.users.items():
        if not is_address(normal(address)):
            yield f"hubs.users.{printable(user)} is {address!r}; expected an e-mail address such as ada@lab.example"
    roles = of.bookings.roles
    for name, emails in (("labAdmins", roles.lab_admins), ("platformAdmins", roles.platform_admins)):
        for email in emails:
            if not is_address(normal(email)):
                yield f"bookings.roles.{name} has {email!r}; expected an e-mail address such as ada@lab.example"


def _about_notifications(of: Notifications) -> Iterator[str]:
    for name, url in (("webhookUrl", of.webhook_url), ("matrixUrl", of.matrix_url)):
        if url and not _is_url(url):
            yield f"notifications.{name} is {_shown(url)}; expected https://HOST/PATH{NO_SECRETS}"
    for host in of.allowed_hosts:
        if not _HOST.fullmatch(host):
            like = "hooks.slack.com, chat.lab.example:8443 or *.logic.azure.com, in lower case"
            yield f"notifications.allowedHosts has {_shown(host)}; expected something like {like}"


def _about_sign_in(of: Configuration) -> Iterator[str]:
    where, oidc, hub = of.bookings, of.bookings.sign_in.oidc, of.bookings.sign_in.hub
    public = _address(where.public_url)
    is_plain = _PATH.fullmatch(public.path) and not public.query and not public.fragment
    if where.public_url and not (_is_url(where.public_url) and is_plain):
        like = "https://gpus.lab.example or https://hub.lab.example/services/carrel"
        yield f"bookings.publicUrl is {_shown(where.public_url)}; expected something like {like}"
    for name, url in (("oidc.issuer", oidc.issuer), ("hub.url", hub.url), ("hub.apiUrl", hub.api_url)):
        if url and not _is_url(url):
            yield f"bookings.signIn.{name} is {_shown(url)}; expected something like https://login.lab.example"
    for name, url in (("oidc.issuer", oidc.issuer), ("hub.url", hub.url)):
        address = _address(url)
        if address.scheme == "http" and not is_loopback(address.hostname or ""):
            yield f"bookings.signIn.{name} must be https: whoever answers there decides who people are"
        if url and not where.public_url:
            yield f"bookings.signIn.{name} needs bookings.publicUrl: people are sent back there"
    if oidc.issuer and not oidc.client_id:
        yield "bookings.signIn.oidc.issuer needs clientId"
    for network in where.sign_in.trusted_proxies:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield f"bookings.signIn.trustedProxies: {error}"


def _address(url: str) -> SplitResult:
    """Return the parts of an address; all are empty if it is none, as in `http://[`."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _shown(url: str) -> str:
    """Without what may be a password: mistakes are told in Events, to more people."""
    return repr(re.sub(r"//[^/]*@", "//…@", url))


def _is_url(text: str) -> bool:
    """A name and a password before the host are refused: whoever reads the configuration would see them."""
    address = _address(text)
    return address.scheme in ("http", "https") and bool(address.netloc) and "@" not in address.netloc


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
