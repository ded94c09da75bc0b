"""Bearer tokens: of Carrel, of a command line that a person allowed, and of Kubernetes."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from carrel.bookings.people import Grant, Role, RoleOptions
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.kubernetes.client import Client
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from tests.integration.sign_in.service import Service, ServicePlan, a_service, csrf_in
from tests.kit.lab import Clock

HUB = "system:serviceaccount:jhub:hub"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with a_service() as service:
        await service.call("POST", "/sign-in/dev", data={"email": "ada@lab.example", "back": "/page"})
        yield service


async def _token(service: Service, **wanted: Any) -> dict[str, Any]:
    headers = {"x-csrf-token": await service.csrf()}
    status, made = await service.call("POST", "/api/v1/tokens", json={"label": "notebook", **wanted}, headers=headers)
    assert status == 201, made
    answer: dict[str, Any] = made
    return answer


def _with(token: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {token}"}}


async def test_a_token_is_shown_once_and_identifies_its_person(service: Service) -> None:
    made = await _token(service, scopes=["read"])
    service.browser.cookie_jar.clear()

    _, me = await service.get("/api/v1/me", **_with(made["token"]))
    assert (me["email"], me["scopes"], me["how"]) == ("ada@lab.example", ["read"], "token")
    _, listed = await service.get("/api/v1/tokens", **_with(made["token"]))
    assert [each["id"] for each in listed["tokens"]] == [made["id"]]
    assert made["token"] not in str(listed)
    assert made["token"] not in repr(vars(service.people))


async def test_a_write_with_a_token_needs_no_csrf_token(service: Service) -> None:
    made = await _token(service)
    service.browser.cookie_jar.clear()

    assert (await service.call("POST", "/write", json={}, **_with(made["token"])))[0] == 200


async def test_a_token_expires_and_can_be_revoked(service: Service) -> None:
    short, long = await _token(service, days=1), await _token(service, days=3650)
    service.clock.now += timedelta(hours=11)
    headers = {"x-csrf-token": await service.csrf()}
    assert (await service.call("DELETE", f"/api/v1/tokens/{long['id']}", headers=headers))[0] == 204
    assert (await service.get("/api/v1/me", **_with(long["token"])))[0] == 401
    assert (await service.get("/api/v1/me", **_with(short["token"])))[0] == 200

    service.clock.now += timedelta(hours=13)
    assert (await service.get("/api/v1/me", **_with(short["token"])))[0] == 401


async def test_a_dev_token_is_refused_by_a_service_without_dev(service: Service) -> None:
    made = await _token(service)
    async with a_service(ServicePlan()) as for_real:
        for name, kept in vars(service.people).items():
            setattr(for_real.people, name, kept)  # the same database

        assert (await for_real.get("/api/v1/me", **_with(made["token"])))[0] == 401


async def test_no_token_lasts_longer_than_the_service_allows(service: Service) -> None:
    made = await _token(service, days=3650)
    service.clock.now += timedelta(days=90)

    assert (await service.get("/api/v1/me", **_with(made["token"])))[0] == 401


@pytest.mark.parametrize(
    "wanted", [{"label": "a\x00b"}, {"label": ""}, {"days": 0}, {"scopes": []}, {"scopes": ["all"]}]
)
async def test_an_invalid_token_request_is_a_client_error(service: Service, wanted: dict[str, Any]) -> None:
    headers = {"x-csrf-token": await service.csrf()}
    status, _ = await service.call("POST", "/api/v1/tokens", json={"label": "x", **wanted}, headers=headers)
    assert status == 422


async def test_nobody_can_revoke_the_token_of_another_person(service: Service) -> None:
    made = await _token(service)
    await service.call("POST", "/sign-in/dev", data={"email": "eve@lab.example", "back": "/page"})
    headers = {"x-csrf-token": await service.csrf()}

    assert (await service.call("DELETE", f"/api/v1/tokens/{made['id']}", headers=headers))[0] == 404
    assert (await service.get("/api/v1/me", **_with(made["token"])))[0] == 200


async def test_a_token_cannot_create_tokens(service: Service) -> None:
    made = await _token(service, scopes=["read", "book", "admin"])
    service.browser.cookie_jar.clear()

    status, problem = await service.call("POST", "/api/v1/tokens", json={"label": "child"}, **_with(made["token"]))
    assert (status, problem["code"]) == (403, "forbidden")


async def test_a_removed_role_is_removed_from_tokens_too(service: Service) -> None:
    given = Grant("ada@lab.example", Role("platform-admin"), "root@lab.example", "she runs it", service.clock.now)
    await service.people.grant(given)
    made = await _token(service, scopes=["read", "book", "admin"])
    line = _CommandLine("read book admin")
    body = {"code": await line.allowed(service), "verifier": line.verifier}
    _, by_browser = await service.call("POST", "/api/v1/tokens/exchange", json=body)
    service.browser.cookie_jar.clear()
    for token in (made["token"], by_browser["token"]):
        assert (await service.get("/api/v1/people", **_with(token)))[0] == 200

    await service.people.grant(replace(given, role=None, why="she left"))

    for token in (made["token"], by_browser["token"]):
        assert (await service.get("/api/v1/people", **_with(token)))[0] == 403


async def test_a_token_of_an_admin_without_the_scope_has_no_admin_rights(service: Service) -> None:
    form = {"email": "root@lab.example", "role": "platform-admin", "back": "/page"}
    await service.call("POST", "/sign-in/dev", data=form)
    weak, strong = await _token(service), await _token(service, scopes=["admin"])
    service.browser.cookie_jar.clear()

    assert (await service.get("/api/v1/people", **_with(weak["token"])))[0] == 403
    assert (await service.get("/api/v1/people", **_with(strong["token"])))[0] == 200


@pytest.mark.parametrize(
    "header",
    ["Bearer carrel_forged", "Bearer ", "Bearer", "Basic YTpi", "carrel_x", "Bearer x.y.z", "Bearer " + "a" * 10_000],
)
async def test_a_bad_header_is_refused_even_with_a_valid_session(service: Service, header: str) -> None:
    status, problem = await service.get("/api/v1/me", headers={"authorization": header})
    assert (status, problem["code"]) == (401, "not-signed-in")


class _CommandLine:
    """What `carrel login` sends."""

    verifier = "v" * 43
    port, state = 51000, "s" * 43
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    page = f"/cli-login?port={port}&state={state}&challenge={challenge}&label=carrel+on+desk&scopes=read+book"

    def __init__(self, scopes: str = "read book") -> None:
        self.scopes = scopes

    async def allowed(self, service: Service) -> str:
        """The code that the browser brings to the command line."""
        _, page = await service.get(self.page)
        fields = {"port": self.port, "state": self.state, "challenge": self.challenge, "label": "carrel on desk"}
        form = {"csrf": csrf_in(page), "scopes": self.scopes, **fields}
        async with service.browser.post(f"{service.url}/cli-login", data=form, allow_redirects=False) as answer:
            where = urlsplit(answer.headers["location"])
        assert (where.scheme, where.netloc) == ("http", f"127.0.0.1:{self.port}")
        brought = parse_qs(where.query)
        assert brought["state"] == [self.state]
        return brought["code"][0]


async def test_a_command_line_gets_a_token_when_the_person_allows_it(service: Service) -> None:
    line = _CommandLine()
    body = {"code": await line.allowed(service), "verifier": line.verifier}
    service.browser.cookie_jar.clear()

    status, made = await service.call("POST", "/api/v1/tokens/exchange", json=body)
    assert status == 200
    _, me = await service.get("/api/v1/me", **_with(made["token"]))
    assert (me["email"], me["scopes"]) == ("ada@lab.example", ["book", "read"])
    assert (await service.call("POST", "/api/v1/tokens/exchange", json=body))[0] == 403, "a code works once"


async def test_a_stolen_code_is_useless_without_the_verifier(service: Service) -> None:
    code = await _CommandLine().allowed(service)

    status, problem = await service.call("POST", "/api/v1/tokens/exchange", json={"code": code, "verifier": "w" * 43})
    assert (status, problem["code"]) == (403, "bad-code")


async def test_another_site_cannot_allow_a_command_line(service: Service) -> None:
    form = {"port": 51000, "state": "s" * 43, "challenge": "c" * 43, "label": "x", "scopes": "read"}
    status, problem = await service.call("POST", "/cli-login", data=form, allow_redirects=False)
    assert (status, problem["code"]) == (403, "not-from-our-page")


@pytest.mark.parametrize("port", ["80", "0", "99999", "-1"])
async def test_a_command_line_needs_a_valid_port(service: Service, port: str) -> None:
    page = _CommandLine.page.replace("port=51000", f"port={port}")
    assert (await service.get(page))[0] == 422


class _Reviews:
    """A cluster that knows some tokens and counts the requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_up = True
        self.audiences: list[str] | None = None
        self.users: dict[str, dict[str, Any]] = {
            "hub-token": {"username": HUB, "extra": {"authentication.kubernetes.io/pod-uid": ["u1"]}},
            "kept-in-a-secret": {"username": HUB},
            "any-account": {"username": "system:serviceaccount:lab:default"},
            "ada-token": {"username": "oidc:Ada@lab.example", "groups": ["staff"]},
            "unprefixed": {"username": "eve@lab.example"},
            "node": {"username": "oidc:system:node:n1"},
        }

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.asked += 1
        if not self.is_up:
            return ApiResponse(503, b"{}")
        body = json.loads(request.body or b"{}")
        user = self.users.get(body["spec"]["token"])
        status = {"authenticated": user is not None, "user": user or {}}
        if self.audiences is not None:
            status["audiences"] = self.audiences
        return ApiResponse(201, json.dumps({**body, "status": status}).encode())

    async def aclose(self) -> None:
        pass


@pytest.fixture
def reviews() -> _Reviews:
    return _Reviews()


@pytest.fixture
async def in_cluster(reviews: _Reviews) -> AsyncIterator[Service]:
    roles = RoleOptions(lab_admin_groups=frozenset({"staff"}), hubs=frozenset({HUB}))

    def kubernetes(roles: RoleOptions, clock: Clock) -> TokenReviewer:
        return TokenReviewer(Client(reviews), roles, clock.seconds, "carrel-booking", "oidc:")

    reviews.audiences = ["carrel-booking"]
    async with a_service(ServicePlan(kubernetes=kubernetes, roles=roles)) as service:
        yield service


async def test_tokens_of_users_are_accepted_and_a_hub_is_known_as_one(in_cluster: Service, reviews: _Reviews) -> None:
    for _ in range(3):
        _, me = await in_cluster.get("/api/v1/me", **_with("ada-token"))
    assert (me["email"], me["roles"], me["how"]) == ("ada@lab.example", ["lab-admin", "member"], "serviceaccount")
    assert reviews.asked == 1, "the answer is cached for a minute"

    assert me["sign_in_groups"] == ["staff"], "the groups that the cluster told"

    status, refused = await in_cluster.get("/api/v1/me", **_with("hub-token"))
    assert (status, refused["title"]) == (403, "A hub may not ask this")


@pytest.mark.parametrize("token", ["any-account", "unprefixed", "node", "nobody", "kept-in-a-secret"])
async def test_other_tokens_of_the_cluster_are_refused(in_cluster: Service, token: str) -> None:
    assert (await in_cluster.get("/api/v1/me", **_with(token)))[0] == 401


async def test_made_up_tokens_cost_the_cluster_few_questions_and_push_out_no_good_one(
    in_cluster: Service, reviews: _Reviews
) -> None:
    assert (await in_cluster.get("/api/v1/me", **_with("ada-token")))[0] == 200

    statuses = [(await in_cluster.get("/api/v1/me", **_with(f"made-up-{number}")))[0] for number in range(300)]

    assert statuses == [401] * 200 + [429] * 100, "Ada's token was good, and counts for nothing"
    assert reviews.asked == 201
    assert (await in_cluster.get("/api/v1/me", **_with("ada-token")))[0] == 200
    assert reviews.asked == 201, "her token is still known"
    in_cluster.clock.now += timedelta(seconds=61)
    assert (await in_cluster.get("/api/v1/me", **_with("ada-token")))[0] == 200


async def test_a_good_token_is_asked_about_once_however_many_calls_come_at_once(
    in_cluster: Service, reviews: _Reviews
) -> None:
    calls = [in_cluster.get("/api/v1/me", **_with("ada-token")) for _ in range(20)]
    assert {status for status, _ in await asyncio.gather(*calls)} == {200}
    assert reviews.asked == 1


async def test_a_user_in_no_member_group_needs_a_grant(reviews: _Reviews) -> None:
    reviews.audiences = ["carrel-booking"]

    def kubernetes(roles: RoleOptions, clock: Clock) -> TokenReviewer:
        return TokenReviewer(Client(reviews), roles, clock.seconds, "carrel-booking", "oidc:")

    async with a_service(
        ServicePlan(kubernetes=kubernetes, roles=RoleOptions(member_groups=frozenset({"lab"})))
    ) as service:
        status, problem = await service.get("/page", **_with("ada-token"))
        assert (status, problem["code"]) == (403, "no-role")

        await service.people.grant(Grant("ada@lab.example", Role("member"), "root", "a guest", service.clock.now))
        assert (await service.get("/page", **_with("ada-token")))[0] == 200


@pytest.mark.parametrize("audiences", [None, [], ["another"]])
async def test_a_token_for_another_audience_is_refused(
    in_cluster: Service, reviews: _Reviews, audiences: list[str] | None
) -> None:
    reviews.audiences = audiences
    assert (await in_cluster.get("/api/v1/me", **_with("ada-token")))[0] == 401


async def test_a_token_revoked_in_the_cluster_works_at_most_a_minute_longer(
    in_cluster: Service, reviews: _Reviews
) -> None:
    assert (await in_cluster.get("/api/v1/me", **_with("ada-token")))[0] == 200
    del reviews.users["ada-token"]
    in_cluster.clock.now += timedelta(seconds=61)

    assert (await in_cluster.get("/api/v1/me", **_with("ada-token")))[0] == 401


async def test_a_cluster_that_does_not_answer_is_a_503(in_cluster: Service, reviews: _Reviews) -> None:
    reviews.is_up = False

    status, problem = await in_cluster.get("/api/v1/me", **_with("ada-token"))
    assert (status, problem["code"]) == (503, "cluster-unavailable")
