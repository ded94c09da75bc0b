"""What every call passes: pace, size, time, headers."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from ipaddress import ip_network

import pytest

from carrel.bookings.sign_in import Buckets, Limits, Rate
from carrel.bookings.sign_in.gate import caller_of
from tests.integration.sign_in.opened import MANY, Plan, Service, a_service
from tests.kit.lab import NOON, Clock


async def test_every_answer_keeps_the_browser_safe() -> None:
    async with a_service() as service:
        for path in ("/sign-in", "/api/v1/me", "/nowhere"):
            async with service.visitor.get(service.url + path) as answer:
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe-inline" not in policy
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert "no-" in answer.headers["cache-control"]
                assert "server" not in answer.headers


async def test_a_body_of_ten_megabytes_is_refused_in_words() -> None:
    async with a_service() as service:
        status, problem = await service.call("POST", "/write", data=b"x" * 10_000_000)

    assert (status, problem["code"]) == (413, "too-large")


async def test_a_body_whose_length_was_not_said_is_counted() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"[" * 1000

    async with a_service() as service:
        await service.call("POST", "/sign-in/dev", data={"email": "ada@lab.example", "back": "/page"})
        headers = {"x-csrf-token": await service.csrf(), "content-type": "application/json"}
        status, problem = await service.call("POST", "/write", data=endless(), headers=headers)

    assert (status, problem["code"]) == (413, "too-large")


async def test_a_sender_who_dawdles_is_sent_away() -> None:
    async with a_service(Plan(is_dev=True, limits=Limits(address=MANY, body_s=0.2))) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(service.url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /sign-in/dev HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        )
        writer.write(b"Content-Length: 100\r\n\r\nemail=")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408")


DEEP = {"lists": "[" * 30_000, "objects": '{"a":' * 10_000, "not JSON": "{", "not text": "\ud800"}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
async def test_a_body_that_is_deep_or_broken_is_the_senders_mistake(body: str) -> None:
    async with a_service() as service:
        await service.call("POST", "/sign-in/dev", data={"email": "ada@lab.example", "back": "/page"})
        headers = {"x-csrf-token": await service.csrf(), "content-type": "application/json"}
        status, _ = await service.call("POST", "/write", data=body.encode(errors="surrogatepass"), headers=headers)

    assert 400 <= status < 500


async def test_too_many_calls_from_one_address_are_told_when_to_come_back() -> None:
    async with a_service(Plan(is_dev=True, limits=Limits(address=Rate(per_second=0.5, burst=3)))) as service:
        statuses = [(await service.get("/sign-in"))[0] for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        async with service.visitor.get(f"{service.url}/sign-in") as answer:
            assert answer.headers["retry-after"] == "2"
            assert json.loads(await answer.text())["code"] == "too-many-requests"

        service.clock.now += timedelta(seconds=2)
        assert (await service.get("/sign-in"))[0] == 200


async def test_too_many_calls_of_one_person_do_not_hinder_another() -> None:
    async with a_service(Plan(is_dev=True, per_person=Rate(per_second=0.1, burst=2))) as service:

        async def calls(service: Service, email: str) -> list[int]:
            await service.call("POST", "/sign-in/dev", data={"email": email, "back": "/sign-in"})
            return [(await service.get("/api/v1/me"))[0] for _ in range(3)]

        assert await calls(service, "ada@lab.example") == [200, 200, 429]
        assert await calls(service, "ben@lab.example") == [200, 200, 429]


async def test_who_says_that_they_are_another_is_counted_as_who_they_are() -> None:
    async with a_service(Plan(is_dev=True, limits=Limits(address=Rate(per_second=0.5, burst=3)))) as service:
        said = [{"x-forwarded-for": f"192.0.2.{number}"} for number in range(5)]
        assert [(await service.get("/sign-in", headers=each))[0] for each in said] == [200, 200, 200, 429, 429]


def test_buckets_take_a_bounded_memory() -> None:
    buckets = Buckets(Rate(1, 1), Clock(NOON).seconds, most=100)
    for number in range(1000):
        buckets.wait_s(f"10.0.{number // 256}.{number % 256}")

    assert len(buckets) == 100


FORWARDED = {
    "nobody is believed by default": ("", "9.9.9.9", "10.0.0.1"),
    "a proxy that we trust is believed": ("10.0.0.0/8", "9.9.9.9", "9.9.9.9"),
    "what the caller wrote before the proxy is not": ("10.0.0.0/8", "1.1.1.1, 9.9.9.9", "9.9.9.9"),
    "a row of proxies that we trust": ("10.0.0.0/8", "9.9.9.9, 10.0.0.2", "9.9.9.9"),
    "a proxy that says nothing": ("10.0.0.0/8", "", "10.0.0.1"),
}


@pytest.mark.parametrize(("trusted", "header", "caller"), FORWARDED.values(), ids=FORWARDED)
def test_whose_address_counts(trusted: str, header: str, caller: str) -> None:
    headers = [(b"x-forwarded-for", header.encode())] if header else []
    scope = {"type": "http", "client": ("10.0.0.1", 1), "headers": headers}
    networks = [ip_network(trusted)] if trusted else []

    assert caller_of(scope, networks) == caller
