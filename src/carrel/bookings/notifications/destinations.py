"""Where messages may be posted at a person's wish: to hosts that an admin has listed, and to nothing inside a network.

A host that is listed by its name may be anywhere: the admin has said so. One that only fits a pattern (`*.example.com`)
must be reached at a public address, so that nobody makes this service call the cluster or the machines around it. The
addresses that were checked are those that the connection is made to: a name that leads elsewhere a moment later does
not help. An address is read by the library that connects, here and there in the same way.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from carrel.configuration.contradictions import is_loopback

MAX_ADDRESS = 2000
_PRINTABLE = re.compile(r"[!-~]+")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def as_given(address: str) -> URL:
    """Without quoting it anew: a signature in it may count every letter. Raises `ValueError`."""
    return URL(address, encoded=True)


def why_not(address: str, hosts: Sequence[str]) -> str:
    """Why messages may not be posted to this address; empty: they may."""
    if len(address) > MAX_ADDRESS or not _PRINTABLE.fullmatch(address):
        return f"this is no address: expected https://HOST/PATH with at most {MAX_ADDRESS:,} characters"
    try:
        url = as_given(address)
        host, port = (url.host or "").lower(), url.port
    except ValueError:
        return "this is no address: expected https://HOST/PATH"
    if not host or url.user or url.password or not (url.scheme == "https" or is_loopback(host)):
        return "expected https://HOST/PATH, without a name and a password before the host"
    name = f"[{host}]" if ":" in host else host
    place = name if port == url.with_port(None).port else f"{name}:{port}"
    if not any(_fits(place, entry) for entry in hosts):
        known = f"; allowed are {', '.join(hosts)}" if hosts else ""
        return f"{place} is no host that an admin has allowed{known}"
    return ""


def _fits(place: str, entry: str) -> bool:
    return place == entry or (entry.startswith("*.") and place.endswith(entry[1:]))


def is_public(address: str) -> bool:
    """Whether the IP address is on the internet, also behind the ways to write an IPv4 address in IPv6."""
    ip = _inner(ipaddress.ip_address(address.partition("%")[0]))
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def _inner(ip: IpAddress) -> IpAddress:
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None) or nat64 or ip


class CheckedResolver(AbstractResolver):
    """Resolves names for connections that people's addresses lead to."""

    def __init__(self, hosts: Callable[[], Sequence[str]], resolver: AbstractResolver | None = None) -> None:
        self._hosts = hosts
        self._resolver = resolver or aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if any(entry.partition(":")[0] == host.lower() for entry in self._hosts()):
            return found
        public = [each for each in found if is_public(each["host"])]
        if not public:
            raise OSError(f"{host} leads to no public address, and no admin has listed it by its name")
        return public

    async def close(self) -> None:
        await self._resolver.close()


def checked_session(hosts: Callable[[], Sequence[str]]) -> aiohttp.ClientSession:
    """For posts to people's addresses. It remembers no cookies and no names, and uses no proxy."""
    connector = aiohttp.TCPConnector(resolver=CheckedResolver(hosts), use_dns_cache=False, limit=20)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
