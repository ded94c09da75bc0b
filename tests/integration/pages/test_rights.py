"""All routes, API and pages, as each role: who sees what, and what a credential that may only read can change."""

import copy
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from carrel.bookings.app import fastapi_app
from carrel.bookings.people import Role, Scope
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, OTHER, Opened, at, made
from tests.kit.people import PeopleInMemory

GROUP, IN_GROUP = "vision", "gil@lab.org"
PRIVATE = {"note": "our secret project", "reason": "a paper nobody knows", "namespace": "hidden-namespace"}
BODIES: tuple[dict[str, Any], ...] = (
    {},
    {"role": "member", "reason": "why", "label": "mine", "end": at(9)},
    {"model": "NVIDIA-RTX-A6000", "days": 1, "start": at(20)},
)
OWN_CREDENTIALS = (
    "/api/v1/tokens/exchange",  # a code from the browser
    "/sign-in/dev",  # with --dev only
    "/maia-api/gpu-schedulability",  # MAIA's token
    "/maia/gpu-booking/gpu-schedulability",
    "/api/v1/booking-status",
)
"""These ask for another credential than that of the person."""


def routes(opened: Opened) -> Iterator[tuple[str, str]]:
    """Method and path of each. How FastAPI keeps routers that are included is its own; a test counts what is found."""

    def flat(found: Iterable[Any]) -> Iterator[tuple[str, str]]:
        for route in found:
            if hasattr(route, "effective_candidates"):
                yield from flat(route.effective_candidates())
            elif getattr(route, "methods", None):
                yield from ((method, route.path) for method in sorted(route.methods) if method != "HEAD")

    yield from flat(fastapi_app(opened.service).routes)


def filled(path: str, id: str) -> str:
    values = {"id": id, "email": OTHER, "group": GROUP, "secret": "none", "token_id": "none", "uuid": "GPU-0"}
    return re.sub(r"\{(\w+)(?::path)?\}", lambda found: values[found[1]], path)


async def booked(opened: Opened) -> dict[str, str]:
    """Whose → the id of a booking with things that are not for everybody."""
    await opened.manage(GROUP, OTHER, members=(IN_GROUP,))
    admin = await opened.caller(ADMIN)
    theirs = await made(admin, user=OTHER, start=at(1), days=2, **PRIVATE)
    groups = await made(admin, group=GROUP, start=at(1), days=2, **PRIVATE)
    return {"a person's": theirs["id"], "a group's": groups["id"]}


ROLES = [
    pytest.param(MEMBER, Role.MEMBER, {"a person's": False, "a group's": False}, id="a member"),
    pytest.param(OTHER, Role.MEMBER, {"a person's": True, "a group's": True}, id="its person"),
    pytest.param(IN_GROUP, Role.MEMBER, {"a person's": False, "a group's": True}, id="a member of the group"),
    pytest.param("zoe@lab.org", Role.LAB_ADMIN, {"a person's": True, "a group's": True}, id="a lab admin"),
    pytest.param("kim@lab.org", Role.PLATFORM_ADMIN, {"a person's": True, "a group's": True}, id="a platform admin"),
]


@pytest.mark.parametrize(("email", "role", "sees"), ROLES)
async def test_the_page_of_a_booking_shows_what_the_api_shows(
    opened: Opened, email: str, role: Role, sees: dict[str, bool]
) -> None:
    ids, visitor = await booked(opened), await a_visitor(opened, email, role)

    for whose, id in ids.items():
        page, answer = text_of(await visitor.get(f"/bookings/{id}")), (await _json(visitor, f"/api/v1/bookings/{id}"))
        for name, text in PRIVATE.items():
            assert (answer[name] == text) == (text in page), (whose, name)
        assert (PRIVATE["note"] in page) == sees[whose], whose


@pytest.mark.parametrize(("email", "role", "sees"), ROLES)
async def test_no_route_shows_what_is_not_for_everybody(
    opened: Opened, email: str, role: Role, sees: dict[str, bool]
) -> None:
    ids, visitor = await booked(opened), await a_visitor(opened, email, role)
    found: dict[str, set[str]] = {}
    walked = [path for method, path in routes(opened) if method == "GET"]
    searches = [f"/api/v1/bookings?q={text.replace(' ', '+')}" for text in PRIVATE.values()]

    for whose, id in ids.items():
        for path in [*walked, *searches]:
            answer = await visitor.get(filled(path, id))
            assert answer.status != 500, (path, answer.body)
            if any(text.encode() in answer.body for text in PRIVATE.values()):
                found.setdefault(path, set()).add(whose)

    assert len(walked) > 30
    if role is Role.MEMBER and not any(sees.values()):
        assert found == {}
    assert found.get("/bookings/{id}", set()) == {whose for whose in ids if sees[whose]}
    assert found.get("/api/v1/bookings/{id}", set()) == found.get("/bookings/{id}", set())


@pytest.mark.parametrize("role", [Role.MEMBER, Role.LAB_ADMIN, Role.PLATFORM_ADMIN])
async def test_a_token_that_may_only_read_changes_nothing(opened: Opened, role: Role) -> None:
    """Not even that its person is signed in: whoever found it cannot be noticed by its person."""
    id = (await booked(opened))["a person's"]
    visitor = await a_visitor(opened, OTHER, role)
    read_only = await opened.caller(OTHER, frozenset({Scope.READ}))
    before = await _state(opened)
    walked = [(method, path) for method, path in routes(opened) if method != "GET"]

    for method, path in walked:
        for body in BODIES:
            for cookie in ({}, {"cookie": f"carrel={visitor.secret}"}):
                answer = await read_only.call(method, filled(path, id), body, cookie)
                if path.rstrip("/") in OWN_CREDENTIALS:
                    assert answer.status in (400, 403, 404, 422), (method, path, answer.body)
                else:
                    assert answer.status == 403, (method, path, answer.body)

    assert len(walked) > 20
    assert await _state(opened) == before
    assert (await visitor.get("/")).status == 200, "the session goes on"


async def _state(opened: Opened) -> dict[str, object]:
    admin = await opened.caller(ADMIN)
    listed = {path: json.loads((await admin.get(path)).body) for path in ("/api/v1/bookings", "/api/v1/audit")}
    people: PeopleInMemory = opened.people
    tokens = {token.id: token.revoked for token in people._tokens.values() if token.email == OTHER}
    return {**listed, "tokens": tokens, "sessions": copy.deepcopy(people._sessions)}


async def _json(visitor: Visitor, path: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((await visitor.get(path)).body)
    return found
