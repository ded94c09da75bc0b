"""What a person may start now: who may ask it, and what is answered."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event

from carrel.bookings.app import booking_app, fastapi_app
from carrel.bookings.lab_configuration import LabConfiguration
from carrel.bookings.people import RoleOptions
from carrel.bookings.sign_in.authenticator import SignInMethods
from carrel.bookings.sign_in.token_review import TokenReviewer
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.schema import Configuration, Tiers
from carrel.dialects.jupyter import HubPeople
from carrel.dialects.options import WhenFull
from carrel.jupyterhub.profiles import profiles_for
from carrel.jupyterhub.startable import read_startable
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.resources import NAMESPACES
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from tests.integration.pages.test_coverage_on_pages import a_cluster
from tests.kit.booking import MEMBER, OTHER, Answer, Caller, Opened, at, made
from tests.kit.eventually import eventually
from tests.kit.gpus import A6000

HUB = "system:serviceaccount:jhub:hub"
IN_A_POD = {"authentication.kubernetes.io/pod-uid": ["1"]}


@dataclass
class Accounts:
    """An API server that knows the tokens of some ServiceAccounts."""

    users: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "hub-token": {"username": HUB, "extra": IN_A_POD},
            "kept-in-a-secret": {"username": HUB},
            "another-account": {"username": "system:serviceaccount:jhub:user", "extra": IN_A_POD},
        }
    )

    async def send(self, request: ApiRequest) -> ApiResponse:
        body = json.loads(request.body or b"{}")
        user = self.users.get(body["spec"]["token"])
        return ApiResponse(
            201, json.dumps({**body, "status": {"authenticated": bool(user), "user": user or {}}}).encode()
        )

    async def aclose(self) -> None:
        pass


@pytest.fixture
def of_hub(opened: Opened) -> Opened:
    """The same service, which lists the hub's ServiceAccount."""
    roles = RoleOptions(opened.service.authenticator.roles.lab_admins, hubs=frozenset({HUB}))
    reviewer = TokenReviewer(Client(Accounts()), roles, opened.clock.seconds)
    authenticator = replace(opened.service.authenticator, roles=roles, methods=SignInMethods(token_reviewer=reviewer))
    service = replace(opened.service, authenticator=authenticator, hub_people=HubPeople("lab.org"))
    return replace(opened, service=service, app=booking_app(service))


@pytest.fixture
def hub(of_hub: Opened) -> Caller:
    return Caller(of_hub.app, "hub-token")


async def _asked(caller: Caller, user: str = "") -> Answer:
    return await caller.get(f"/api/v1/startable{f'?user={user}' if user else ''}")


# --- who may ask -----------------------------------------------------------------------------------------------------


async def test_a_hub_asks_about_its_users_by_name_or_address(of_hub: Opened, hub: Caller) -> None:
    await made(await of_hub.caller(MEMBER), days=5)

    for user in ("ada", "Ada", MEMBER):
        answer = await _asked(hub, user)
        assert answer.status == 200
        assert (answer.json["user"], answer.json["matches"]) == (MEMBER, True)
        assert [each["model"] for each in answer.json["bookings"]] == [A6000]


async def test_a_person_asks_about_themselves_only(of_hub: Opened) -> None:
    for caller in (await of_hub.caller(MEMBER), await of_hub.caller("eva@lab.org")):
        own = await _asked(caller)
        assert (own.status, own.json["bookings"]) == (200, [])
        others = await _asked(caller, OTHER)
        assert (others.status, others.json["code"]) == (403, "forbidden")
        assert "hubs.accounts" in others.json["detail"]
    assert (await _asked(await of_hub.caller(MEMBER), "ada")).json["user"] == MEMBER


@pytest.mark.parametrize("token", ["kept-in-a-secret", "another-account", "made up", "", "nobody else knows it"])
async def test_nobody_else_may_ask_about_others(of_hub: Opened, token: str) -> None:
    assert (await _asked(Caller(of_hub.app, token), "ada")).status == 401


async def test_a_hub_may_ask_nothing_else(of_hub: Opened, hub: Caller) -> None:
    document = fastapi_app(of_hub.service).openapi()
    public = {"/api/v1/startable", "/api/v1/feeds/{secret}.ics", "/api/v1/tokens/exchange", "/api/v1/booking-status"}
    asked = []
    for path, methods in document["paths"].items():
        for method in methods if path.startswith("/api/v1/") and path not in public else ():
            for name in ("id", "group", "email", "token_id"):
                path = path.replace(f"{{{name}}}", "x@y")
            answer = await hub.call(method.upper(), path, {})
            assert (answer.status, answer.json["title"]) == (403, "A hub may not ask this"), (method, path)
            asked.append(path)
    assert "/api/v1/bookings" in asked and "/api/v1/people" in asked and "/api/v1/me" in asked
    for page in ("/", "/timeline", "/admin"):
        assert (await hub.get(page)).status == 403


async def test_a_hub_must_say_about_whom(hub: Caller) -> None:
    answer = await _asked(hub)
    assert (answer.status, answer.json["problems"][0]["field"]) == (400, "user")


async def test_a_user_who_matches_nobody_is_said(of_hub: Opened) -> None:
    service = replace(of_hub.service, hub_people=HubPeople())
    answer = await _asked(Caller(booking_app(service), "hub-token"), "ada")

    assert (answer.json["user"], answer.json["matches"], answer.json["bookings"]) == ("ada", False, [])
    assert "hubs.usernameDomain" in answer.json["notices"][0]


async def test_before_the_cluster_was_read_nothing_is_answered(of_hub: Opened, hub: Caller) -> None:
    of_hub.inventory.is_known = False
    answer = await _asked(hub, "ada")
    assert (answer.status, answer.json["code"]) == (503, "inventory-unknown")


# --- what is answered ------------------------------------------------------------------------------------------------


async def test_the_answer_has_the_form_that_hubs_read(of_hub: Opened, hub: Caller) -> None:
    booking = await made(await of_hub.caller(MEMBER), days=5, namespace="lab")
    of_hub.inventory.unheld_gpus = {A6000: 1}

    read = read_startable((await _asked(hub, "ada")).json)
    assert ([each.left for each in read.bookings], [each.gpus for each in read.free]) == ([1], [1])
    assert (await _asked(hub, "ada")).json == {
        "user": MEMBER,
        "matches": True,
        "bookings": [
            {
                "id": booking["id"],
                "model": A6000,
                "gpus": 1,
                "used": 0,
                "group": "",
                "start": at(0),
                "end": at(5),
                "runs": True,
                "share": False,
                "namespace": "lab",
                "why_short": "",
            }
        ],
        "free": [{"model": A6000, "gpus": 1, "next_free": None}],
        "book_url": "http://carrel.test/timeline",
        "notices": [],
        "waits_when_full": False,
        "zone": "Europe/Stockholm",
    }


@pytest.mark.parametrize(
    ("setting", "namespace", "waits"),
    [
        (WhenFull.DEFAULT, "", False),
        (WhenFull.WAIT, "", True),
        (WhenFull.WAIT, "cpu", False),
        (WhenFull.CPU, "wait", True),
    ],
)
async def test_a_hub_is_told_what_a_full_cluster_means_in_its_namespace(
    of_hub: Opened, setting: WhenFull, namespace: str, waits: bool
) -> None:
    async with a_cluster(of_hub) as seen:
        current = CurrentConfiguration(Configuration(tiers=Tiers(when_full=setting)))
        service = replace(of_hub.service, configuration=LabConfiguration(current))
        notes = {"carrel.dev/when-full": namespace} if namespace else {}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "jhub", "annotations": notes}}
        await seen.lab.client.create(NAMESPACES, body)
        await eventually(lambda: seen.replica.namespaces.store.get("jhub"), "the namespace in the cache")

        answer = await _asked(Caller(booking_app(service), "hub-token"), "ada")

    assert answer.json["waits_when_full"] is waits


async def test_bookings_that_start_within_a_day_are_told_and_later_ones_are_not(opened: Opened, ada: Caller) -> None:
    await made(ada, start=at(1.1), days=2)
    assert (await _asked(ada)).json["bookings"] == []

    opened.clock.now += timedelta(hours=3)
    told = (await _asked(ada)).json
    assert [each["runs"] for each in told["bookings"]] == [False]
    assert told["notices"] == ["your booking of 1 RTX A6000 starts Tue 17 Nov 15:24 CET"]


async def test_a_booking_that_was_cancelled_or_is_over_is_not_told(opened: Opened, ada: Caller, bob: Caller) -> None:
    booking = await made(ada, days=2)
    await made(bob, days=2)
    await ada.post(f"/api/v1/bookings/{booking['id']}/cancel")
    assert (await _asked(ada)).json["bookings"] == []

    opened.clock.now += timedelta(days=2)
    assert (await _asked(bob)).json["bookings"] == []


async def test_the_bookings_of_a_persons_groups_are_theirs_too(opened: Opened, ada: Caller, bob: Caller) -> None:
    await opened.manage("vision", MEMBER, members=(OTHER,))
    await opened.manage("nlp", MEMBER)
    await made(ada, days=2, group="vision")

    assert [each["group"] for each in (await _asked(ada)).json["bookings"]] == ["vision"]
    assert [each["group"] for each in (await _asked(bob)).json["bookings"]] == ["vision"]

    opened.clock.now += timedelta(days=1, hours=6)
    assert "extend it at" in (await _asked(ada)).json["notices"][0], "she manages the group"
    assert (await _asked(bob)).json["notices"] == ["the booking of 1 RTX A6000 for vision ends Wed 18 Nov 13:00 CET"]


async def test_the_end_of_a_booking_is_told_in_time_and_a_new_one_is_not_greeted_with_it(
    opened: Opened, ada: Caller
) -> None:
    booking = await made(ada, days=1)
    assert (await _asked(ada)).json["notices"] == []

    opened.clock.now += timedelta(hours=23)
    page = f"http://carrel.test/bookings/{booking['id']}"
    assert (await _asked(ada)).json["notices"] == [
        f"your booking of 1 RTX A6000 ends Tue 17 Nov 13:00 CET; extend it at {page}"
    ]


async def test_the_spawn_page_says_that_the_node_of_a_booking_is_cordoned_and_shows_no_gpu_there(
    opened: Opened, ada: Caller
) -> None:
    await made(ada, days=5)
    opened.inventory.gpus[A6000], opened.inventory.unheld_gpus = 0, {A6000: 0}
    opened.inventory.out_of_use = ("dgx-1 is cordoned (kubectl uncordon dgx-1)",) * 2

    shown = profiles_for(read_startable((await _asked(ada)).json))

    assert [each["slug"] for each in shown][1:] == ["gpu-any", "no-gpu"], "no GPU is free now"
    assert shown[0]["description"] == (
        "Your notebook may have to wait: 2 of 2 are out of use: dgx-1 is cordoned (kubectl uncordon dgx-1)."
    )
    opened.inventory.gpus[A6000], opened.inventory.out_of_use = 2, ()
    shown = profiles_for(read_startable((await _asked(ada)).json))
    assert shown[0]["description"] == "Nobody can take it away until then."


async def test_without_a_cluster_the_calendar_says_what_is_free(opened: Opened, ada: Caller, bob: Caller) -> None:
    await made(bob, days=2)
    assert (await _asked(ada)).json["free"] == [{"model": A6000, "gpus": 1, "next_free": None}]

    await made(ada, days=3)
    assert (await _asked(ada)).json["free"] == [{"model": A6000, "gpus": 0, "next_free": at(2)}]


async def test_the_answer_costs_the_same_however_many_groups_and_bookings_there_are(
    opened: Opened, ada: Caller
) -> None:
    opened.inventory.unheld_gpus, opened.inventory.gpus = {A6000: 50}, {A6000: 50}
    await made(ada, days=2)
    with statements() as with_one:
        assert len((await _asked(ada)).json["bookings"]) == 1

    for group in map(str, range(10)):
        await opened.manage(group, MEMBER)
        await made(ada, days=2, group=group)
    with statements() as with_many:
        assert len((await _asked(ada)).json["bookings"]) == 11

    assert len(with_many) == len(with_one) < 10


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """What the database is asked."""
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)
