"""To which addresses of people messages may be posted."""

import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from carrel.bookings.notifications.destinations import CheckedResolver, is_public, why_not

HOSTS = ("hooks.slack.com", "*.logic.azure.com", "chat.lab.example:8443", "127.0.0.1:8080", "[fd00::1]")

ALLOWED = {
    "a host that is listed": "https://hooks.slack.com/services/T/B/X",
    "in capitals": "https://HOOKS.slack.com/services/T/B/X",
    "with the port of https": "https://hooks.slack.com:443/x",
    "below a pattern": "https://prod-12.westeurope.logic.azure.com/workflows/1?sig=a%2Fb",
    "with the port that is listed": "https://chat.lab.example:8443/hooks/x",
    "this machine, listed, without TLS": "http://127.0.0.1:8080/x",
    "an address of IPv6 that is listed": "https://[fd00::1]/x",
}


@pytest.mark.parametrize("address", ALLOWED.values(), ids=ALLOWED)
def test_an_address_is_allowed(address: str) -> None:
    assert why_not(address, HOSTS) == ""


REFUSED = {
    "a host that is not listed": "https://discord.com/api/webhooks/1/2",
    "a service of the cluster": "https://kubernetes.default.svc/api",
    "the metadata of a cloud": "http://169.254.169.254/latest/meta-data",
    "without TLS": "http://hooks.slack.com/services/T/B/X",
    "another port": "https://hooks.slack.com:8443/x",
    "without the port that is listed": "https://chat.lab.example/x",
    "a pattern's own name": "https://logic.azure.com/x",
    "a name that only ends like a pattern": "https://evillogic.azure.com/x",
    "a name that only begins like a host": "https://hooks.slack.com.evil.example/x",
    "with the root's dot": "https://hooks.slack.com./x",
    "a listed host as a user name": "https://hooks.slack.com@evil.example/x",
    "a listed host before a backslash": "https://evil.example\\@hooks.slack.com/x",
    "a listed host in the fragment": "https://evil.example#@hooks.slack.com/x",
    "a number for an address": "http://2130706433:8080/x",
    "another scheme": "file:///etc/passwd",
    "gopher": "gopher://hooks.slack.com/x",
    "no host": "https:///x",
    "a line break": "https://hooks.slack.com/x\r\nhost: evil",
    "a blank": "https://hooks.slack.com/a b",
    "letters that look like others": "https://hооks.slack.com/x",
    "too long": "https://hooks.slack.com/" + "x" * 2000,
    "a port that is none": "https://hooks.slack.com:99999/x",
    "a bracket": "https://[/x",
    "nothing": "",
}


@pytest.mark.parametrize("address", REFUSED.values(), ids=REFUSED)
def test_an_address_is_refused_with_a_reason(address: str) -> None:
    assert why_not(address, HOSTS)


def test_without_a_list_nothing_is_allowed() -> None:
    assert "no host that an admin has allowed" in why_not("https://hooks.slack.com/x", ())


INSIDE = ["10.0.0.1", "172.20.1.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"]
INSIDE += ["255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1"]
INSIDE += ["2002:0a00:0001::", "ff02::1"]


@pytest.mark.parametrize("address", INSIDE)
def test_what_lies_inside_a_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["34.226.10.1", "2a00:1450:4001::1", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_what_is_on_the_internet_is_public(address: str) -> None:
    assert is_public(address)


class Names(AbstractResolver):
    """Every name leads to these."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in self.addresses
        ]

    async def close(self) -> None:
        pass


async def reached(host: str, *addresses: str) -> list[str]:
    resolver = CheckedResolver(lambda: HOSTS, Names(*addresses))
    return [each["host"] for each in await resolver.resolve(host, 443)]


async def test_a_name_below_a_pattern_is_reached_at_public_addresses_only() -> None:
    assert await reached("a.logic.azure.com", "10.0.0.1", "8.8.8.8") == ["8.8.8.8"]
    with pytest.raises(OSError, match="leads to no public address"):
        await reached("a.logic.azure.com", "10.0.0.1", "169.254.169.254")


async def test_a_host_that_an_admin_has_listed_may_be_inside() -> None:
    assert await reached("chat.lab.example", "10.0.0.1") == ["10.0.0.1"]
