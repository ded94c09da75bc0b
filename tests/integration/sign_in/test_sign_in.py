"""Sign-in with a real OpenID Connect provider, and everything that must be refused."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import jwt
import pytest
from yarl import URL

from carrel.bookings.people import RoleOptions
from tests.integration.sign_in.service import NOON, Service, ServicePlan, a_service
from tests.kit.lab import Clock
from tests.kit.oidc_provider import OidcProvider


@pytest.fixture
def provider() -> OidcProvider:
    return OidcProvider(Clock(NOON))


@pytest.fixture
async def service(provider: OidcProvider) -> AsyncIterator[Service]:
    async with a_service(ServicePlan(provider, roles=RoleOptions(lab_admin_groups=frozenset({"staff"})))) as service:
        provider.now = service.clock
        yield service


async def test_a_person_is_known_by_the_e_mail_address_in_lower_case(service: Service) -> None:
    status, _ = await service.get("/sign-in?back=/page")

    assert status == 200
    _, me = await service.get("/api/v1/me")
    assert me == {
        "email": "ada@lab.example",
        "name": "Ada",
        "roles": ["member"],
        "scopes": ["admin", "book", "read"],
        "how": "session",
        "sign_in_groups": [],
    }


async def test_a_group_gives_a_role(service: Service, provider: OidcProvider) -> None:
    provider.person["groups"] = ["staff", "others"]
    await service.get("/sign-in?back=/page")

    assert (await service.get("/api/v1/me"))[1]["roles"] == ["lab-admin", "member"]


async def test_the_groups_of_the_last_sign_in_are_remembered(service: Service, provider: OidcProvider) -> None:
    provider.person["groups"] = ["vision", "nlp", "odd\nname"]
    await service.get("/sign-in")
    first = await service.get("/api/v1/me")

    provider.person["groups"] = "nlp"
    await service.get("/sign-in")
    second = await service.get("/api/v1/me")

    assert first[1]["sign_in_groups"] == ["nlp", "vision"]
    assert second[1]["sign_in_groups"] == ["nlp"]
    assert await service.people.seen_groups(second[1]["email"]) == {"nlp": service.clock.now}


async def test_a_page_redirects_to_the_sign_in_and_back(service: Service) -> None:
    headers = {"accept": "text/html"}
    async with service.browser.get(f"{service.url}/page?day=3", headers=headers) as answer:
        assert answer.status == 200
        assert str(answer.url) == f"{service.url}/page?day=3"


async def test_a_new_key_of_the_provider_is_fetched_when_it_is_used(service: Service, provider: OidcProvider) -> None:
    await service.get("/sign-in?back=/page")
    provider.rotate()
    service.clock.now += timedelta(minutes=2)

    assert (await service.get("/sign-in?back=/page"))[0] == 200
    assert provider.key_reads == 2


async def test_unknown_keys_do_not_cause_a_request_each(service: Service, provider: OidcProvider) -> None:
    await service.get("/sign-in?back=/page")
    for _ in range(3):
        provider.rotate()
        assert (await service.get("/sign-in"))[0] == 403
    assert provider.key_reads == 1


WRONG_CLAIMS: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "somebody else"},
    "several audiences, for another client": {"aud": ["carrel", "other"], "azp": "other"},
    "another issuer": {"iss": "https://evil.example"},
    "expired": {"exp": int(NOON.timestamp()) - 3600},
    "issued in the future": {"iat": int(NOON.timestamp()) + 3600},
    "not valid yet": {"nbf": int(NOON.timestamp()) + 3600},
    "a time that is no number": {"exp": "soon"},
    "no expiry": {"exp": None},
    "the nonce of another sign-in": {"nonce": "another"},
    "no nonce": {"nonce": None},
    "no e-mail address": {"email": None},
    "an e-mail address that is a list": {"email": ["ada@lab.example"]},
}
UNVERIFIED: list[Any] = [False, "false", "False", "0", "no", "", "True", 0, 1, [], {}, [True]]
WRONG_CLAIMS |= {f"an address that was not verified: {each!r}": {"email_verified": each} for each in UNVERIFIED}


@pytest.mark.parametrize("wrong", WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
async def test_a_wrong_claim_is_refused(service: Service, provider: OidcProvider, wrong: dict[str, Any]) -> None:
    provider.wrong_claims = wrong

    assert (await service.get("/sign-in?back=/page"))[0] == 403
    assert service.cookie == ""


@pytest.mark.parametrize("claim", [True, "true", None], ids=["true", "the text true", "no such claim"])
async def test_a_verified_address_signs_in(service: Service, provider: OidcProvider, claim: object) -> None:
    provider.wrong_claims = {"email_verified": claim}

    assert (await service.get("/sign-in?back=/page"))[0] == 200
    assert service.cookie


def _with_another_key(provider: OidcProvider, claims: dict[str, Any]) -> str:
    other = OidcProvider(Clock(NOON))
    other.rotate()
    other.key_id = provider.key_id
    return other.signed(claims)


FORGERIES: dict[str, Callable[[OidcProvider, dict[str, Any]], str]] = {
    "another key under the key id of the provider": _with_another_key,
    "not signed": lambda _, claims: jwt.encode(claims, "", "none"),
    "signed with a shared secret": lambda _, claims: jwt.encode(claims, "the client's secret, made longer", "HS256"),
    "not a token": lambda _, claims: "not.a.token",
    "empty": lambda _, claims: "",
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
async def test_a_forged_id_token_is_refused(
    service: Service, provider: OidcProvider, forge: Callable[[OidcProvider, dict[str, Any]], str]
) -> None:
    provider.sign = lambda claims: forge(provider, claims)

    assert (await service.get("/sign-in?back=/page"))[0] == 403
    assert service.cookie == ""


async def _callback(service: Service) -> str:
    """The URL to which the provider redirects the browser, before it is opened."""
    async with service.browser.get(f"{service.url}/sign-in", allow_redirects=False) as to_provider:
        where = to_provider.headers["location"]
    async with service.browser.get(where, allow_redirects=False) as back:
        return back.headers["location"].removeprefix(service.url)


async def test_a_sign_in_works_once(service: Service, provider: OidcProvider) -> None:
    callback = await _callback(service)
    cookies = {
        name: cookie.value for name, cookie in service.browser.cookie_jar.filter_cookies(URL(service.url)).items()
    }
    provider.codes_work_once = False
    assert (await service.get(callback, allow_redirects=False))[0] == 303

    status, page = await service.get(callback, cookies=cookies)

    assert status == 403
    assert "already used" in page


async def test_a_later_sign_in_of_the_same_browser_replaces_the_earlier(service: Service) -> None:
    earlier, later = await _callback(service), await _callback(service)

    status, page = await service.get(earlier)
    assert (status, "not started in this browser" in page) == (403, True)
    assert (await service.get(later, allow_redirects=False))[0] == 303


@pytest.mark.parametrize(
    "cookie", ["", "x", "begun=&secret=&back_to=", "begun=9999-99-99&secret=s", "begun=0001-01-01&secret=s"]
)
async def test_a_forged_attempt_cookie_is_refused(service: Service, cookie: str) -> None:
    callback = await _callback(service)
    service.browser.cookie_jar.clear()

    assert (await service.get(callback, headers={"cookie": f"carrel-sign-in={cookie}"}))[0] == 403


async def test_the_state_of_another_browser_is_refused(service: Service) -> None:
    callback = await _callback(service)
    service.browser.cookie_jar.clear()

    status, page = await service.get(callback)

    assert status == 403
    assert "not started in this browser" in page


async def test_a_started_sign_in_writes_nothing(service: Service) -> None:
    before = repr(vars(service.people))
    for _ in range(3):
        await _callback(service)

    assert repr(vars(service.people)) == before


async def test_a_sign_in_that_takes_too_long_is_refused(service: Service) -> None:
    callback = await _callback(service)
    service.clock.now += timedelta(minutes=11)

    assert (await service.get(callback))[0] == 403


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
async def test_after_signing_in_nobody_is_redirected_to_another_site(service: Service, back: str) -> None:
    async with service.browser.get(f"{service.url}/sign-in", params={"back": back}, allow_redirects=False) as begun:
        where = begun.headers["location"]
    async with service.browser.get(where, allow_redirects=False) as at_provider:
        callback = at_provider.headers["location"]
    async with service.browser.get(callback, allow_redirects=False) as finished:
        assert finished.headers["location"] == "/"


async def test_a_person_in_no_member_group_is_refused(provider: OidcProvider) -> None:
    async with a_service(ServicePlan(provider, roles=RoleOptions(member_groups=frozenset({"gpu-users"})))) as service:
        status, page = await service.get("/sign-in")

    assert status == 403
    assert "no group" in page


async def test_a_provider_that_does_not_answer_is_reported(provider: OidcProvider) -> None:
    async with a_service(ServicePlan(provider)) as service:
        provider.app.router.routes.clear()
        status, page = await service.get("/sign-in")

    assert status == 403
    assert "identity provider answered 404" in page
