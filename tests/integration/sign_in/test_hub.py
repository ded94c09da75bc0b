"""Sign-in with a JupyterHub, the tokens of its users, and everything that must be refused."""

import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import pytest

from carrel.bookings.people import Grant, Role, RoleOptions
from carrel.bookings.sign_in.hub import redirect_uri, service_name
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.configuration.schema import Bookings, HubSignIn, SignIn
from carrel.kubernetes.client import Client
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from tests.integration.sign_in.service import NOON, Service, ServicePlan, a_service
from tests.kit.hub_provider import ACCESS, HubProvider
from tests.kit.lab import Clock
from tests.kit.oidc_provider import OidcProvider

ADA = "ada@lab.example"


@pytest.fixture
def hub() -> HubProvider:
    return HubProvider()


@pytest.fixture
async def service(hub: HubProvider) -> AsyncIterator[Service]:
    roles = RoleOptions(lab_admins=frozenset({ADA}), lab_admin_groups=frozenset({"staff"}))
    async with a_service(ServicePlan(hub=hub, roles=roles)) as service:
        yield service


def _with(token: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {token}"}}


async def _redirected(service: Service, url: str) -> str:
    """Where a request is sent to, without following it."""
    async with service.browser.get(url, allow_redirects=False) as answer:
        return answer.headers["location"]


# --- with a browser --------------------------------------------------------------------------------------------------


async def test_a_user_of_the_hub_signs_in_under_their_address(service: Service) -> None:
    async with service.browser.get(f"{service.url}/page?day=3", headers={"accept": "text/html"}) as answer:
        assert (answer.status, str(answer.url)) == (200, f"{service.url}/page?day=3")

    _, me = await service.get("/api/v1/me")
    assert me == {
        "email": ADA,
        "name": "ada",
        "roles": ["lab-admin", "member"],
        "scopes": ["admin", "book", "read"],
        "how": "session",
        "sign_in_groups": ["vision"],
    }


@pytest.mark.parametrize(("user", "roles"), [("bob", ["member"]), ("eve@lab.example", ["member"])])
async def test_an_admin_of_the_hub_is_no_admin_here(
    service: Service, hub: HubProvider, user: str, roles: list[str]
) -> None:
    hub.user = {"name": user, "groups": [], "admin": True}
    await service.get("/sign-in")

    assert (await service.get("/api/v1/me"))[1]["roles"] == roles


async def test_a_group_of_the_hub_gives_a_role(service: Service, hub: HubProvider) -> None:
    hub.user = {"name": "bob", "groups": ["staff"]}
    await service.get("/sign-in")

    assert (await service.get("/api/v1/me"))[1]["roles"] == ["lab-admin", "member"]


async def test_a_hub_that_tells_no_groups_takes_none_away(service: Service, hub: HubProvider) -> None:
    await service.get("/sign-in")
    hub.user = {"name": "ada"}
    await service.get("/sign-in")

    assert (await service.get("/api/v1/me"))[1]["sign_in_groups"] == ["vision"]


async def test_a_user_who_matches_nobody_is_told_which_option_is_missing(hub: HubProvider) -> None:
    async with a_service(ServicePlan(hub=hub, username_domain="")) as service:
        status, page = await service.get("/sign-in")
        by_token = await service.get("/api/v1/me", **_with(hub.token()))

        assert (status, service.cookie) == (403, "")
        assert "hubs.usernameDomain" in page and "hubs.users" in page
        assert (by_token[0], "hubs.usernameDomain" in by_token[1]["detail"]) == (403, True)


async def test_only_members_may_use_it_where_a_group_is_needed(hub: HubProvider) -> None:
    async with a_service(ServicePlan(hub=hub, roles=RoleOptions(member_groups=frozenset({"lab"})))) as service:
        status, page = await service.get("/sign-in")
        assert (status, "is in no group that may use this service" in page) == (403, True)

        hub.user = {"name": "ada"}
        assert "JupyterHub does not tell your groups" in (await service.get("/sign-in"))[1]


async def test_a_sign_in_that_another_browser_started_is_refused(service: Service) -> None:
    at_the_hub = await _redirected(service, f"{service.url}/sign-in")
    back = await _redirected(service, at_the_hub)
    async with aiohttp.ClientSession() as other, other.get(back) as answer:
        assert answer.status == 403
        assert "was not started in this browser" in await answer.text()
        assert "set-cookie" not in answer.headers

    forged = f"{service.url}/oauth_callback?{urlencode({'code': 'x', 'state': 'y'})}"
    assert (await service.get(forged.removeprefix(service.url)))[0] == 403


async def test_a_sign_in_works_once_and_not_for_ever(service: Service) -> None:
    back = await _redirected(service, await _redirected(service, f"{service.url}/sign-in"))
    attempt = {cookie.key: cookie.value for cookie in service.browser.cookie_jar}
    path = back.removeprefix(service.url)
    assert (await service.get(path, allow_redirects=False))[0] == 303
    assert (await service.get(path, cookies=attempt))[0] == 403, "the code was used"

    late = await _redirected(service, await _redirected(service, f"{service.url}/sign-in"))
    service.clock.now += timedelta(minutes=11)
    assert "took too long" in (await service.get(late.removeprefix(service.url)))[1]


async def test_a_sign_in_begins_a_new_session_and_ends_the_old_one(service: Service) -> None:
    await service.get("/sign-in")
    first = service.cookie
    await service.get("/sign-in")

    assert service.cookie != first
    async with aiohttp.ClientSession(cookies={"carrel": first}) as thief, thief.get(f"{service.url}/page") as answer:
        assert answer.status == 401


async def test_after_signing_in_nobody_is_sent_to_another_site(service: Service) -> None:
    for wanted in ("https://evil.example/", "//evil.example", "/\\evil.example", "/page/../../x", "/%2e%2e/x"):
        async with service.browser.get(f"{service.url}/sign-in", params={"back": wanted}) as answer:
            assert str(answer.url) == f"{service.url}/", wanted


async def test_what_the_hub_asks_and_answers_is_as_the_hub_wants_it(service: Service, hub: HubProvider) -> None:
    asked = urlsplit(await _redirected(service, f"{service.url}/sign-in"))
    question = parse_qs(asked.query)

    assert asked.path == "/hub/api/oauth2/authorize"
    assert question.keys() == {
        *("response_type", "client_id", "redirect_uri", "state", "code_challenge", "code_challenge_method")
    }

    hub.refusal = "access_denied"
    status, page = await service.get("/sign-in")
    assert (status, "JupyterHub reported: access_denied" in page) == (403, True)


BROKEN = {
    "a text": b"<html>proxy</html>",
    "a list": b"[]",
    "nobody": b'{"access_token": "x"}',
    "a service": json.dumps({"access_token": "x", "kind": "service", "name": "culler"}).encode(),
    "more than any hub sends": b'{"access_token": "' + b"x" * (2 << 20) + b'"}',
    "a token that no header can have": '{"access_token": "ö"}'.encode(),
    "deeply nested": b"[" * 100_000,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
async def test_an_answer_that_names_nobody_signs_nobody_in(service: Service, hub: HubProvider, body: bytes) -> None:
    hub.body = body
    status, page = await service.get("/sign-in")

    assert status in (403, 503)
    assert "You are not signed in" in page and "Try again" in page
    assert service.cookie == ""


async def test_a_hub_that_is_away_gives_a_clear_page(service: Service, hub: HubProvider) -> None:
    back = await _redirected(service, await _redirected(service, f"{service.url}/sign-in"))
    hub.is_up = False
    status, page = await service.get(back.removeprefix(service.url))

    assert (status, "JupyterHub answered 503" in page) == (503, True)


async def test_a_wrong_secret_is_said_to_be_the_services_fault(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kit.hub_provider.SECRET", "another one")
    status, page = await service.get("/sign-in")

    assert (status, "CARREL_HUB_CLIENT_SECRET" in page) == (403, True)


async def test_who_signs_out_stays_signed_out(service: Service) -> None:
    await service.get("/sign-in")
    status, page = await service.call("POST", "/sign-out", data={"csrf": await service.csrf()})

    assert (status, "You are signed out" in page, service.cookie) == (200, True, "")


async def test_with_two_providers_people_choose_and_one_cannot_finish_what_the_other_began(hub: HubProvider) -> None:
    provider = OidcProvider(Clock(NOON))
    async with a_service(ServicePlan(provider, hub)) as service:
        provider.now = service.clock
        _, page = await service.get("/sign-in?back=/page")
        assert "Sign in with JupyterHub" in page and "Sign in with your identity provider" in page

        async with service.browser.get(f"{service.url}/sign-in?with=hub&back=/page") as answer:
            assert str(answer.url) == f"{service.url}/page"
        async with service.browser.get(f"{service.url}/sign-in?with=oidc&back=/page") as answer:
            assert str(answer.url) == f"{service.url}/page"

        back = await _redirected(service, await _redirected(service, f"{service.url}/sign-in?with=oidc"))
        swapped = back.replace("/sign-in/callback", "/oauth_callback").removeprefix(service.url)
        assert "was not started in this browser" in (await service.get(swapped))[1]


REDIRECTS = {
    "on the hub's own host": ("https://hub.lab.org", "https://hub.lab.org", "/services/carrel/oauth_callback"),
    "on a hub that is under a path": (
        *("https://lab.org/jupyter", "https://lab.org"),
        "/services/carrel/oauth_callback",
    ),
    "on the host of the hub's services": (
        *("https://hub.lab.org", "https://services.hub.lab.org"),
        "https://services.hub.lab.org/services/carrel/oauth_callback",
    ),
}


@pytest.mark.parametrize(("hub_url", "public_url", "expected"), REDIRECTS.values(), ids=REDIRECTS)
def test_people_come_back_to_the_address_that_a_hub_registers(hub_url: str, public_url: str, expected: str) -> None:
    at_hub = SignIn(hub=HubSignIn(url=hub_url))
    assert redirect_uri(Bookings(public_url=f"{public_url}/services/carrel", sign_in=at_hub)) == expected


@pytest.mark.parametrize(
    ("url", "name"),
    [
        pytest.param("https://hub.lab.org/services/gpus", "gpus", id="below the hub, as the hub calls it"),
        pytest.param("https://hub.lab.org/jupyter/services/gpus/", "gpus", id="of a hub that is under a path"),
        pytest.param("https://lab.org/gpus", "carrel", id="elsewhere under a path"),
        pytest.param("https://gpus.lab.org", "carrel", id="on its own host"),
    ],
)
def test_the_name_of_the_service_at_the_hub_follows_from_its_address(url: str, name: str) -> None:
    assert service_name(Bookings(public_url=url)) == name


def test_without_a_base_path_people_come_back_to_the_host_of_the_service() -> None:
    at_hub = SignIn(hub=HubSignIn(url="https://hub.lab.org"))
    assert (
        redirect_uri(Bookings(public_url="https://gpus.lab.org", sign_in=at_hub))
        == "https://gpus.lab.org/oauth_callback"
    )


# --- with a token ----------------------------------------------------------------------------------------------------


async def test_the_token_of_a_notebook_reads_and_books_but_never_as_an_admin(
    service: Service, hub: HubProvider
) -> None:
    _, me = await service.get("/api/v1/me", **_with(hub.token(groups=["staff"])))

    assert (me["email"], me["how"], me["scopes"]) == (ADA, "hub", ["book", "read"])
    assert me["roles"] == ["lab-admin", "member"]
    assert me["sign_in_groups"] == ["staff"]
    assert (await service.get("/api/v1/people", **_with(hub.token())))[0] == 403, "that is for admins"
    made = await service.call("POST", "/api/v1/tokens", json={"label": "x"}, **_with(hub.token()))
    assert made[0] == 403, "a token cannot create tokens"


async def test_the_hub_is_asked_once_a_minute_about_a_token(service: Service, hub: HubProvider) -> None:
    token = hub.token()
    for _ in range(3):
        assert (await service.get("/page", **_with(token)))[0] == 200
    assert hub.asked == [token]

    hub.revoke(token)
    service.clock.now += timedelta(seconds=59)
    assert (await service.get("/page", **_with(token)))[0] == 200
    service.clock.now += timedelta(seconds=1)
    assert (await service.get("/page", **_with(token)))[0] == 401, "revoked at the hub a minute ago"


async def test_a_token_that_is_of_no_use_is_refused_with_the_reason(service: Service, hub: HubProvider) -> None:
    unknown = await service.get("/page", **_with("0" * 32))
    too_few = await service.get("/page", **_with(hub.token(scopes=("read:users:name!user", ACCESS + "2"))))
    of_a_service = await service.get("/page", **_with(hub.token("culler", kind="service")))

    assert (unknown[0], unknown[1]["code"]) == (401, "not-signed-in")
    assert (too_few[0], f"the scope {ACCESS}." in too_few[1]["detail"]) == (403, True)
    assert (of_a_service[0], "a service of JupyterHub" in of_a_service[1]["detail"]) == (403, True)


async def test_a_hub_that_is_away_is_said_and_not_remembered(service: Service, hub: HubProvider) -> None:
    token = hub.token()
    hub.is_up = False
    status, problem = await service.get("/page", **_with(token))
    assert (status, problem["code"]) == (503, "hub-unavailable")

    hub.is_up = True
    assert (await service.get("/page", **_with(token)))[0] == 200


async def test_where_a_group_is_needed_the_groups_of_the_last_sign_in_count(hub: HubProvider) -> None:
    async with a_service(ServicePlan(hub=hub, roles=RoleOptions(member_groups=frozenset({"vision"})))) as service:
        token = hub.token()
        assert (await service.get("/page", **_with(token)))[0] == 403
        await service.get("/sign-in")
        assert (await service.get("/page", **_with(token)))[0] == 200


async def test_a_role_that_was_granted_counts_with_a_hubs_token(hub: HubProvider) -> None:
    async with a_service(ServicePlan(hub=hub, roles=RoleOptions(member_groups=frozenset({"lab"})))) as service:
        await service.people.grant(Grant(ADA, Role.MEMBER, "root", "a guest", service.clock.now))
        assert (await service.get("/page", **_with(hub.token(groups=[]))))[0] == 200


class _Reviews:
    """An API server that writes down the tokens that it is asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def send(self, request: ApiRequest) -> ApiResponse:
        body = json.loads(request.body or b"{}")
        self.asked.append(body["spec"]["token"])
        return ApiResponse(201, json.dumps({**body, "status": {"authenticated": False}}).encode())

    async def aclose(self) -> None:
        pass


async def test_no_token_is_shown_to_anybody_but_who_made_it(hub: HubProvider, caplog: pytest.LogCaptureFixture) -> None:
    reviews = _Reviews()

    def kubernetes(roles: RoleOptions, clock: Clock) -> TokenReviewer:
        return TokenReviewer(Client(reviews), roles, clock.seconds)

    own, of_the_cluster = "carrel_" + "0" * 32, "eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl"
    of_the_hub, unknown = hub.token(), "f" * 32
    with caplog.at_level(logging.DEBUG):
        async with a_service(ServicePlan(hub=hub, kubernetes=kubernetes)) as service:
            for token in (own, of_the_cluster, of_the_hub, unknown):
                await service.get("/page", **_with(token))
            hub.is_up = False
            await service.get("/page", **_with("e" * 32))

    assert reviews.asked == [of_the_cluster]
    assert hub.asked == [of_the_hub, unknown, "e" * 32]
    assert not any(token in caplog.text for token in (own, of_the_cluster, of_the_hub, unknown, "e" * 32))


async def test_without_a_hub_its_tokens_are_tokens_like_others(hub: HubProvider) -> None:
    async with a_service(ServicePlan()) as service:
        assert (await service.get("/page", **_with(hub.token())))[0] == 401
    assert hub.asked == []
