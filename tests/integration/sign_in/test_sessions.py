"""What a session's cookie is good for, and what it is not: another site's forms, forgery, a time that is over."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import aiohttp
import pytest

from carrel.bookings.people import Grant, Role
from tests.integration.sign_in.opened import Plan, Service, a_service


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with a_service() as service:
        await service.call("POST", "/sign-in/dev", data={"email": "ada@lab.example", "back": "/page"})
        yield service


async def test_a_session_ends_when_its_time_is_over(service: Service) -> None:
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
    assert (await service.get("/api/v1/me", cookies={"carrel": cookie}))[0] == 401, "a stolen copy is worth nothing"


async def test_signing_in_again_ends_the_session_before(service: Service) -> None:
    planted = service.cookie
    await service.call("POST", "/sign-in/dev", data={"email": "ben@lab.example", "back": "/page"})

    service.visitor.cookie_jar.clear()
    assert (await service.get("/api/v1/me", cookies={"carrel": planted}))[0] == 401


@pytest.mark.parametrize("cookie", ["forged", "", "a" * 10_000, "ä", "ada@lab.example"])
async def test_a_forged_cookie_is_nobody(service: Service, cookie: str) -> None:
    service.visitor.cookie_jar.clear()
    headers = {"cookie": f"carrel={cookie}"} if cookie.isascii() else {}

    assert (await service.get("/api/v1/me", headers=headers))[0] in (400, 401)


NOT_FROM_OUR_PAGE = {
    "no proof": {},
    "another's proof": {"x-csrf-token": "0" * 64},
    "another origin, with the proof": {"x-csrf-token": "PROOF", "origin": "https://evil.example"},
    "an opaque origin, with the proof": {"x-csrf-token": "PROOF", "origin": "null"},
    "a browser that says so, with the proof": {"x-csrf-token": "PROOF", "sec-fetch-site": "cross-site"},
    "a sibling of the domain, with the proof": {"x-csrf-token": "PROOF", "sec-fetch-site": "same-site"},
}


@pytest.mark.parametrize("headers", NOT_FROM_OUR_PAGE.values(), ids=NOT_FROM_OUR_PAGE)
async def test_a_write_with_the_cookie_needs_proof_that_our_page_made_it(
    service: Service, headers: dict[str, str]
) -> None:
    proof = await service.csrf()
    told = {name: proof if value == "PROOF" else value for name, value in headers.items()}

    status, problem = await service.call("POST", "/write", json={}, headers=told)

    assert status == 403
    assert problem["code"] == "not-from-our-page"


async def test_our_own_page_may_write_by_header_or_by_form(service: Service) -> None:
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


async def test_a_name_that_was_pointed_at_this_machine_signs_nobody_in(service: Service) -> None:
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    assert (await service.call("POST", "/sign-in/dev", data={"email": "eve@lab.example"}, headers=headers))[0] == 404


THROUGH_A_PROXY = {
    "that keeps the name": {"host": "gpus.lab.example"},
    "that tells for whom it calls": {"x-forwarded-for": "192.0.2.7"},
    "of the new fashion": {"forwarded": "for=192.0.2.7"},
}


@pytest.mark.parametrize("headers", THROUGH_A_PROXY.values(), ids=THROUGH_A_PROXY)
async def test_who_comes_through_a_proxy_is_not_on_this_machine(service: Service, headers: dict[str, str]) -> None:
    assert (await service.call("POST", "/sign-in/dev", data={"email": "eve@lab.example"}, headers=headers))[0] == 404
    assert (await service.get("/api/v1/me"))[1]["email"] == "ada@lab.example"


async def test_without_dev_nobody_may_say_who_they_are() -> None:
    async with a_service(Plan()) as service:
        status, _ = await service.call("POST", "/sign-in/dev", data={"email": "eve@lab.example"})
        assert status == 404
        assert (await service.get("/sign-in"))[0] == 503


async def test_with_https_the_cookie_is_secure_and_nobody_else_on_the_domain_can_set_it() -> None:
    async with a_service(Plan(is_dev=True, is_https=True)) as service:
        headers = {"origin": "https://carrel.example"}
        data = {"email": "ada@lab.example"}
        async with service.visitor.post(
            f"{service.url}/sign-in/dev", data=data, headers=headers, allow_redirects=False
        ) as answer:
            cookie = answer.headers["set-cookie"].lower()
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
    assert cookie.startswith("__host-carrel=")
    for word in ("secure", "httponly", "samesite=lax", "path=/"):
        assert word in cookie
    assert "domain" not in cookie


async def test_what_was_said_for_trying_it_is_worth_nothing_for_real(service: Service) -> None:
    async with a_service(Plan()) as for_real:
        for name, kept in vars(service.people).items():
            setattr(for_real.people, name, kept)  # the same database

        assert (await for_real.get("/api/v1/me", cookies={"carrel": service.cookie}))[0] == 401


async def test_the_store_never_sees_the_secret(service: Service) -> None:
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


async def test_a_role_is_given_and_taken_away_at_once(service: Service) -> None:
    given = Grant("ada@lab.example", Role("lab-admin"), "root@lab.example", "she runs the lab", service.clock.now)
    await service.people.grant(given)
    assert "lab-admin" in (await service.get("/api/v1/me"))[1]["roles"]
    assert (await service.get("/api/v1/people"))[0] == 200

    await service.people.grant(replace(given, role=None, why="she left"))
    assert (await service.get("/api/v1/people"))[0] == 403


async def test_a_member_cannot_give_roles(service: Service) -> None:
    headers = {"x-csrf-token": await service.csrf()}
    body = {"role": "platform-admin", "reason": "please"}

    status, problem = await service.call("PUT", "/api/v1/people/ada@lab.example/role", json=body, headers=headers)

    assert (status, problem["code"]) == (403, "forbidden")
