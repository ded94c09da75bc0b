"""Session cookies: expiry, forgery, and forms of other sites (CSRF)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import aiohttp
import pytest

from carrel.bookings.people import Grant, Role
from tests.integration.sign_in.service import Service, ServicePlan, a_service


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with a_service() as service:
        await service.call("POST", "/sign-in/dev", data={"email": "ada@lab.example", "back": "/page"})
        yield service


async def test_a_session_expires(service: Service) -> None:
    assert (await service.get("/api/v1/me"))[0] == 200
    service.clock.now += timedelta(hours=12)

    status, problem = await service.get("/api/v1/me")
    assert status == 401
    assert (problem["code"], problem["hint"]) == ("not-signed-in", "carrel login")


async def test_signing_out_ends_the_session_on_the_server_too(service: Service) -> None:
    cookie = service.cookie
    status, _ = await service.call("POST", "/sign-out", data={"csrf": await service.csrf()}, allow_redirects=False)

    assert status == 303
    assert service.cookie == ""
    assert (await service.get("/api/v1/me", cookies={"carrel": cookie}))[0] == 401, "a stolen copy does not work"


async def test_signing_in_again_ends_the_previous_session(service: Service) -> None:
    planted = service.cookie
    await service.call("POST", "/sign-in/dev", data={"email": "ben@lab.example", "back": "/page"})

    service.browser.cookie_jar.clear()
    assert (await service.get("/api/v1/me", cookies={"carrel": planted}))[0] == 401


@pytest.mark.parametrize("cookie", ["forged", "", "a" * 10_000, "ä", "ada@lab.example"])
async def test_a_forged_cookie_is_refused(service: Service, cookie: str) -> None:
    service.browser.cookie_jar.clear()
    headers = {"cookie": f"carrel={cookie}"} if cookie.isascii() else {}

    assert (await service.get("/api/v1/me", headers=headers))[0] in (400, 401)


NOT_FROM_OUR_PAGE = {
    "no CSRF token": {},
    "another CSRF token": {"x-csrf-token": "0" * 64},
    "another origin, with the token": {"x-csrf-token": "PROOF", "origin": "https://evil.example"},
    "an opaque origin, with the token": {"x-csrf-token": "PROOF", "origin": "null"},
    "another site, with the token": {"x-csrf-token": "PROOF", "sec-fetch-site": "cross-site"},
    "another host of the domain, with the token": {"x-csrf-token": "PROOF", "sec-fetch-site": "same-site"},
}


@pytest.mark.parametrize("headers", NOT_FROM_OUR_PAGE.values(), ids=NOT_FROM_OUR_PAGE)
async def test_a_write_with_a_cookie_must_come_from_our_page(service: Service, headers: dict[str, str]) -> None:
    proof = await service.csrf()
    told = {name: proof if value == "PROOF" else value for name, value in headers.items()}

    status, problem = await service.call("POST", "/write", json={}, headers=told)

    assert status == 403
    assert problem["code"] == "not-from-our-page"


async def test_our_own_page_may_write_with_a_header_or_a_form(service: Service) -> None:
    proof = await service.csrf()
    ours = {"origin": service.url, "sec-fetch-site": "same-origin"}

    by_header = await service.call("POST", "/write", json={}, headers={**ours, "x-csrf-token": proof})
    by_form = await service.call("POST", "/form", data={"csrf": proof, "word": "hello"}, headers=ours)

    assert by_header == (200, {"by": "ada@lab.example"})
    assert by_form == (200, {"by": "ada@lab.example", "word": "hello"})


async def test_another_site_cannot_sign_a_browser_in(service: Service) -> None:
    status, _ = await service.call(
        "POST", "/sign-in/dev", data={"email": "eve@lab.example"}, headers={"origin": "https://evil.example"}
    )
    assert status == 404
    assert (await service.get("/api/v1/me"))[1]["email"] == "ada@lab.example"


async def test_dns_rebinding_does_not_sign_in(service: Service) -> None:
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    assert (await service.call("POST", "/sign-in/dev", data={"email": "eve@lab.example"}, headers=headers))[0] == 404


PROXIED = {
    "a proxy that keeps the host name": {"host": "gpus.lab.example"},
    "a proxy with X-Forwarded-For": {"x-forwarded-for": "192.0.2.7"},
    "a proxy with Forwarded": {"forwarded": "for=192.0.2.7"},
}


@pytest.mark.parametrize("headers", PROXIED.values(), ids=PROXIED)
async def test_dev_sign_in_through_a_proxy_is_refused(service: Service, headers: dict[str, str]) -> None:
    assert (await service.call("POST", "/sign-in/dev", data={"email": "eve@lab.example"}, headers=headers))[0] == 404
    assert (await service.get("/api/v1/me"))[1]["email"] == "ada@lab.example"


async def test_dev_sign_in_needs_the_option_dev() -> None:
    async with a_service(ServicePlan()) as service:
        status, _ = await service.call("POST", "/sign-in/dev", data={"email": "eve@lab.example"})
        assert status == 404
        assert (await service.get("/sign-in"))[0] == 503


async def test_with_https_the_cookie_is_secure_and_bound_to_the_host() -> None:
    async with a_service(ServicePlan(is_dev=True, is_https=True)) as service:
        headers = {"origin": "https://carrel.example"}
        data = {"email": "ada@lab.example"}
        async with service.browser.post(
            f"{service.url}/sign-in/dev", data=data, headers=headers, allow_redirects=False
        ) as answer:
            cookie = answer.headers["set-cookie"].lower()
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
    assert cookie.startswith("__host-carrel=")
    for word in ("secure", "httponly", "samesite=lax", "path=/"):
        assert word in cookie
    assert "domain" not in cookie


async def test_a_dev_session_is_refused_by_a_service_without_dev(service: Service) -> None:
    async with a_service(ServicePlan()) as for_real:
        for name, kept in vars(service.people).items():
            setattr(for_real.people, name, kept)  # the same database

        assert (await for_real.get("/api/v1/me", cookies={"carrel": service.cookie}))[0] == 401


async def test_the_secret_is_not_stored(service: Service) -> None:
    assert service.cookie
    assert service.cookie not in repr(vars(service.people))


async def test_an_admin_signs_a_person_out_everywhere(service: Service) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as admin:
        form = {"email": "root@lab.example", "role": "platform-admin", "back": "/page"}
        async with admin.post(f"{service.url}/sign-in/dev", data=form) as page:
            headers = {"x-csrf-token": await page.text()}
        path = f"{service.url}/api/v1/people/ada@lab.example/sign-out"
        async with admin.post(path, headers=headers) as answer:
            assert await answer.json() == {"ended": 1}
    assert (await service.get("/api/v1/me"))[0] == 401


async def test_a_role_is_granted_and_removed_at_once(service: Service) -> None:
    given = Grant("ada@lab.example", Role("lab-admin"), "root@lab.example", "she runs the lab", service.clock.now)
    await service.people.grant(given)
    assert "lab-admin" in (await service.get("/api/v1/me"))[1]["roles"]
    assert (await service.get("/api/v1/people"))[0] == 200

    await service.people.grant(replace(given, role=None, why="she left"))
    assert (await service.get("/api/v1/people"))[0] == 403


async def test_a_member_cannot_grant_roles(service: Service) -> None:
    headers = {"x-csrf-token": await service.csrf()}
    body = {"role": "platform-admin", "reason": "please"}

    status, problem = await service.call("PUT", "/api/v1/people/ada@lab.example/role", json=body, headers=headers)

    assert (status, problem["code"]) == (403, "forbidden")
