"""What is stored about people: in memory (for tests), in SQLite and in PostgreSQL, with the same guarantees."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.groups import SEEN_COUNTS, GroupSource
from carrel.bookings.notifications.choices import MessageChoices
from carrel.bookings.people import Grant, How, PendingLogin, Role, Scope, Session, Token
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from tests.kit.people import PeopleInMemory
from tests.kit.postgres import new_database

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
ADA = "ada@lab.example"


@pytest.fixture(params=["memory", "SQLite", "PostgreSQL"])
async def people(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlPeople]:
    if request.param == "memory":
        yield PeopleInMemory()
        return
    is_sqlite = request.param == "SQLite"
    server = "" if is_sqlite else request.getfixturevalue("postgres_server")
    opened = Database(f"sqlite:///{tmp_path}/carrel.db" if is_sqlite else new_database(server))
    await opened.migrate()
    yield SqlPeople(opened)
    await opened.aclose()


def a_session(**differences: object) -> Session:
    plain = Session(ADA, "Ada", frozenset({Role.MEMBER, Role.LAB_ADMIN}), How.SESSION, NOON, LATER)
    return replace(plain, **differences)  # type: ignore[arg-type] # the fields of a session


def a_token(**differences: object) -> Token:
    scopes = frozenset({Scope.READ, Scope.BOOK})
    plain = Token("t1", ADA, "notebook", scopes, NOON, NOON + timedelta(days=30), frozenset({Role.MEMBER}))
    return replace(plain, **differences)  # type: ignore[arg-type] # the fields of a token


async def test_a_session_is_found_until_it_expires_or_ends(people: SqlPeople) -> None:
    await people.begin_session("one", a_session())
    await people.begin_session("two", a_session())

    assert await people.session("one", NOON) == a_session()
    assert await people.session("three", NOON) is None
    assert await people.session("one", LATER) is None
    await people.end_session("one")
    assert await people.session("one", NOON) is None
    assert await people.session("two", NOON) == a_session()


async def test_a_person_is_signed_out_everywhere(people: SqlPeople) -> None:
    for name in ("one", "two"):
        await people.begin_session(name, a_session())
    await people.begin_session("hers", a_session(email="ben@lab.example"))

    await people.add_token("hash", a_token())
    await people.add_token("old", a_token(id="t2", expires=NOON))

    assert await people.sign_out_everywhere(ADA, NOON) == 3
    assert await people.session("one", NOON) is None
    assert await people.token("hash", NOON) is None
    assert await people.session("hers", NOON) is not None


async def test_a_pending_login_is_given_to_one_of_many_callers(people: SqlPeople) -> None:
    login = PendingLogin({"port": "51000", "email": ADA}, LATER)
    await people.begin_login("secret", login)

    taken = await asyncio.gather(*(people.take_login("secret", NOON) for _ in range(5)))

    assert taken.count(login) == 1
    assert taken.count(None) == 4


async def test_a_pending_login_that_expired_is_not_given(people: SqlPeople) -> None:
    await people.begin_login("secret", PendingLogin({}, LATER))

    assert await people.take_login("another", NOON) is None
    assert await people.take_login("secret", LATER) is None


async def test_a_secret_is_used_once(people: SqlPeople) -> None:
    used = await asyncio.gather(*(people.use_once("secret", LATER) for _ in range(5)))

    assert sorted(used) == [False, False, False, False, True]
    assert await people.use_once("another", LATER)


async def test_a_token_is_valid_until_it_expires_or_is_revoked(people: SqlPeople) -> None:
    await people.add_token("hash", a_token())

    assert await people.token("hash", NOON) == a_token()
    assert await people.token("other", NOON) is None
    assert await people.token("hash", NOON + timedelta(days=30)) is None
    assert not await people.revoke_token("eve@lab.example", "t1", NOON)
    assert await people.revoke_token(ADA, "t1", NOON)
    assert await people.revoke_token(ADA, "t1", LATER), "revoking again changes nothing"
    assert await people.token("hash", NOON) is None
    assert [token.revoked for token in await people.tokens_of(ADA)] == [NOON]


async def test_tokens_are_listed_newest_first_with_their_last_use_to_the_hour(people: SqlPeople) -> None:
    await people.add_token("old", a_token())
    await people.add_token("new", a_token(id="t2", created=LATER))
    for minutes in (0, 5, 59):
        await people.token("old", NOON + timedelta(minutes=minutes))

    listed = await people.tokens_of(ADA)

    assert [(token.id, token.last_used) for token in listed] == [("t2", None), ("t1", NOON)]
    await people.token("old", LATER)
    assert (await people.tokens_of(ADA))[1].last_used == LATER


async def test_a_role_is_granted_and_taken_away_also_for_a_person_who_never_signed_in(people: SqlPeople) -> None:
    assert (await people.person(ADA)).granted is None
    await people.grant(Grant(ADA, Role.LAB_ADMIN, "root@lab.example", "runs the lab", NOON))
    assert (await people.person(ADA)).granted is Role.LAB_ADMIN

    await people.begin_session("one", a_session())
    assert (await people.person(ADA)).granted is Role.LAB_ADMIN, "signing in does not change it"
    known = await people.known()
    assert [(each.email, each.name, each.granted, each.last_seen) for each in known] == [
        (ADA, "Ada", Role.LAB_ADMIN, NOON)
    ]
    await people.grant(Grant(ADA, None, "root@lab.example", "left", NOON))
    assert (await people.person(ADA)).granted is None


async def test_a_person_chooses_a_zone_and_goes_back_to_the_labs(people: SqlPeople) -> None:
    await people.choose_zone(ADA, ZoneInfo("Asia/Kolkata"))
    assert (await people.person(ADA)).zone == ZoneInfo("Asia/Kolkata"), "also who has never signed in"

    await people.begin_session("one", a_session())
    await people.grant(Grant(ADA, Role.LAB_ADMIN, "root@lab.example", "runs the lab", NOON))
    assert (await people.person(ADA)).zone == ZoneInfo("Asia/Kolkata"), "neither a sign-in nor a role changes it"
    assert (await people.person("eve@lab.example")).zone is None

    await people.choose_zone(ADA, None)
    assert (await people.person(ADA)).zone is None
    assert (await people.person(ADA)).granted is Role.LAB_ADMIN


async def test_expired_sessions_and_logins_are_deleted(people: SqlPeople) -> None:
    await people.begin_session("over", a_session(expires=NOON))
    await people.begin_session("on", a_session())
    await people.begin_login("over", PendingLogin({}, NOON))
    await people.use_once("over", NOON)

    assert await people.forget_expired(NOON) == 3
    assert await people.session("on", NOON) is not None


async def test_the_groups_of_a_person_are_those_that_each_source_told_last(people: SqlPeople) -> None:
    await people.saw_groups(ADA, GroupSource.IDENTITY_PROVIDER, ["vision", "nlp"], NOON)
    await people.saw_groups(ADA, GroupSource.CLUSTER, ["oidc:vision", "system:authenticated"], NOON)
    assert await people.seen_groups(ADA) == dict.fromkeys(["vision", "nlp", "oidc:vision"], NOON)

    soon = NOON + timedelta(minutes=30)
    await people.saw_groups(ADA, GroupSource.CLUSTER, ["oidc:vision"], soon)
    assert (await people.seen_groups(ADA))["oidc:vision"] == NOON, "known and fresh: nothing is written"
    await people.saw_groups(ADA, GroupSource.IDENTITY_PROVIDER, ["nlp"], soon)
    assert await people.seen_groups(ADA) == {"nlp": soon, "oidc:vision": NOON}
    await people.saw_groups(ADA, GroupSource.CLUSTER, ["oidc:vision"], LATER)
    assert (await people.seen_groups(ADA))["oidc:vision"] == LATER

    await people.saw_groups(ADA, GroupSource.CLUSTER, [], LATER)
    assert await people.seen_groups(ADA) == {"nlp": soon}
    await people.sign_out_everywhere(ADA, LATER)
    assert await people.seen_groups(ADA) == {}


async def test_a_group_that_was_not_seen_for_long_is_forgotten(people: SqlPeople) -> None:
    await people.saw_groups(ADA, GroupSource.IDENTITY_PROVIDER, ["vision"], NOON)

    assert await people.forget_expired(NOON + SEEN_COUNTS - timedelta(seconds=1)) == 0
    assert await people.seen_groups(ADA) == {"vision": NOON}
    assert await people.forget_expired(NOON + SEEN_COUNTS) == 1
    assert await people.seen_groups(ADA) == {}


async def test_giving_a_role_is_in_the_log_with_its_reason(database: Database) -> None:
    await SqlPeople(database).grant(Grant(ADA, Role.LAB_ADMIN, "root@lab.example", "runs the lab", NOON))

    async with SqlBookings(database).reading() as reading:
        (entry,) = await reading.log()
    told = (entry.actor, entry.action, entry.subject, entry.why, entry.details)
    assert told == ("root@lab.example", "role-given", ADA, "runs the lab", {"role": "lab-admin"})


async def test_a_person_chooses_how_to_be_told_things(people: SqlPeople) -> None:
    assert (await people.person(ADA)).messages == MessageChoices()
    chosen = MessageChoices(False, {"slack": "https://hooks.example/x"}, frozenset({"bookings"}))

    await people.choose_messages(ADA, chosen)
    await people.choose_zone(ADA, ZoneInfo("Asia/Kolkata"))

    known = await people.person(ADA)
    assert (known.messages, known.zone) == (chosen, ZoneInfo("Asia/Kolkata")), "one does not change the other"
