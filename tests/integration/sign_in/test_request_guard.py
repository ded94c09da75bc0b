"""Every request has limits on rate, size and time, and every answer has security headers."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from ipaddress import ip_network

import pytest

from carrel.bookings.people import RoleOptions
from carrel.bookings.sign_in.authenticator import LONG_ANSWERS
from carrel.bookings.sign_in.request_guard import PersonLimiter, Rate, RateLimiter, RequestLimits, client_address
from tests.integration.sign_in.service import MANY, Service, ServicePlan, a_service
from tests.kit.eventually import LIMIT_S
from tests.kit.lab import NOON, Clock


async def test_every_answer_has_security_headers() -> None:
    async with a_service() as service:
        for path in ("/sign-in", "/api/v1/me", "/nowhere"):
            async with service.browser.get(service.url + path) as answer:
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe-inline" not in policy
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert "no-" in answer.headers["cache-control"]
                assert "server" not in answer.headers


async def test_a_body_of_ten_megabytes_is_refused_with_a_reason() -> None:
    async with a_service() as service:
        status, problem = await service.call("POST", "/write", data=b"x" * 10_000_000)

    assert (status, problem["code"]) == (413, "too-large")


async def test_a_body_without_a_length_is_counted() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"[" * 1000

    async with a_service() as service:
        await service.call("POST", "/sign-in/dev", data={"email": "ada@lab.example", "back": "/page"})
        headers = {"x-csrf-token": await service.csrf(), "content-type": "application/json"}
        status, problem = await service.call("POST", "/write", data=endless(), headers=headers)

    assert (status, problem["code"]) == (413, "too-large")


async def test_a_slow_sender_is_disconnected() -> None:
    async with a_service(ServicePlan(is_dev=True, limits=RequestLimits(address=MANY, body_s=0.2))) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(service.url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /sign-in/dev HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        )
        writer.write(b"Content-Length: 100\r\n\r\nemail=")
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408")


DEEP = {"lists": "[" * 30_000, "objects": '{"a":' * 10_000, "not JSON": "{", "not text": "\ud800"}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
async def test_a_body_that_is_nested_or_invalid_is_a_client_error(body: str) -> None:
    async with a_service() as service:
        await service.call("POST", "/sign-in/dev", data={"email": "ada@lab.example", "back": "/page"})
        headers = {"x-csrf-token": await service.csrf(), "content-type": "application/json"}
        status, _ = await service.call("POST", "/write", data=body.encode(errors="surrogatepass"), headers=headers)

    assert 400 <= status < 500


async def test_too_many_requests_from_one_address_get_retry_after() -> None:
    async with a_service(
        ServicePlan(is_dev=True, limits=RequestLimits(address=Rate(per_second=0.5, burst=3)))
    ) as service:
        statuses = [(await service.get("/sign-in"))[0] for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        async with service.browser.get(f"{service.url}/sign-in") as answer:
            assert answer.headers["retry-after"] == "2"
            assert json.loads(await answer.text())["code"] == "too-many-requests"

        service.clock.now += timedelta(seconds=2)
        assert (await service.get("/sign-in"))[0] == 200


async def test_the_rate_limit_of_one_person_does_not_affect_another() -> None:
    async with a_service(ServicePlan(is_dev=True, per_person=Rate(per_second=0.1, burst=2))) as service:

        async def calls(service: Service, email: str) -> list[int]:
            await service.call("POST", "/sign-in/dev", data={"email": email, "back": "/sign-in"})
            return [(await service.get("/api/v1/me"))[0] for _ in range(3)]

        assert await calls(service, "ada@lab.example") == [200, 200, 429]
        assert await calls(service, "ben@lab.example") == [200, 200, 429]


async def test_changes_have_a_limit_of_their_own_for_each_person_and_none_for_admins() -> None:
    """What is changed is stored for ever; who books and cancels in a loop must not fill the database."""
    roles = RoleOptions(lab_admins=frozenset({"eva@lab.example"}))
    async with a_service(ServicePlan(is_dev=True, roles=roles)) as service:

        async def changes(email: str) -> list[int]:
            await service.call("POST", "/sign-in/dev", data={"email": email, "back": "/page"})
            headers = {"x-csrf-token": await service.csrf()}
            return [(await service.call("POST", "/write", json={}, headers=headers))[0] for _ in range(102)]

        assert (await changes("ada@lab.example"))[99:] == [200, 429, 429]
        assert (await service.get("/api/v1/me"))[0] == 200, "she may still look"
        assert set(await changes("eva@lab.example")) == {200}
        service.clock.now += timedelta(seconds=10)
        assert (await changes("ada@lab.example"))[:2] == [200, 429]


async def test_a_forged_forwarded_address_does_not_avoid_the_rate_limit() -> None:
    async with a_service(
        ServicePlan(is_dev=True, limits=RequestLimits(address=Rate(per_second=0.5, burst=3)))
    ) as service:
        said = [{"x-forwarded-for": f"192.0.2.{number}"} for number in range(5)]
        assert [(await service.get("/sign-in", headers=each))[0] for each in said] == [200, 200, 200, 429, 429]


@pytest.mark.parametrize(
    ("path", "is_long"),
    [
        pytest.param("/", True, id="the home page"),
        pytest.param("/gpus/timeline", True, id="the timeline, under a base path"),
        pytest.param("/api/v1/bookings", True, id="all bookings"),
        pytest.param("/api/v1/bookings/3f1c", False, id="one booking"),
        pytest.param("/timeline/verdict", False, id="a part of a page"),
        pytest.param("/api/v1/me", False, id="a short answer"),
    ],
)
def test_what_reads_all_bookings_takes_long(path: str, is_long: bool) -> None:
    assert bool(LONG_ANSWERS.search(path)) is is_long


def test_a_person_who_asks_for_long_answers_leaves_most_of_the_service_to_others() -> None:
    clock = Clock(NOON)
    limiter = PersonLimiter(clock.seconds)
    while not limiter.wait_s("ada@lab.example", is_long=True):
        pass  # what she has saved

    served = 0
    for _ in range(1000):
        clock.now += timedelta(milliseconds=10)
        served += not limiter.wait_s("ada@lab.example", is_long=True)

    assert served == 50
    assert not limiter.wait_s("ben@lab.example", is_long=True)


def test_the_rate_limiter_has_bounded_memory() -> None:
    limiter = RateLimiter(Rate(1, 1), Clock(NOON).seconds, most=100)
    for number in range(1000):
        limiter.wait_s(f"10.0.{number // 256}.{number % 256}")

    assert len(limiter) == 100


FORWARDED = {
    "no proxy is trusted by default": ("", "9.9.9.9", "10.0.0.1"),
    "a trusted proxy is believed": ("10.0.0.0/8", "9.9.9.9", "9.9.9.9"),
    "what the caller wrote before the proxy is not believed": ("10.0.0.0/8", "1.1.1.1, 9.9.9.9", "9.9.9.9"),
    "several trusted proxies": ("10.0.0.0/8", "9.9.9.9, 10.0.0.2", "9.9.9.9"),
    "a proxy without the header": ("10.0.0.0/8", "", "10.0.0.1"),
}


@pytest.mark.parametrize(("trusted", "header", "caller"), FORWARDED.values(), ids=FORWARDED)
def test_the_address_of_the_caller(trusted: str, header: str, caller: str) -> None:
    headers = [(b"x-forwarded-for", header.encode())] if header else []
    scope = {"type": "http", "client": ("10.0.0.1", 1), "headers": headers}
    networks = [ip_network(trusted)] if trusted else []

    assert client_address(scope, networks) == caller
