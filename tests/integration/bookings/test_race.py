"""Many clients want the last GPU: exactly one gets it. `CARREL_SWEEP=1` makes it 1,000 clients, twenty times."""

import asyncio
import os
from dataclasses import replace

import pytest
from sqlalchemy.exc import SQLAlchemyError

from carrel.bookings.people import PendingLogin, Person, Role, Scope, Token
from carrel.bookings.records import BookingRecord, BookingRefusal, BookingRequest
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from tests.kit.booking import DAY, MEMBER, NOW, Opened, at, made, opened_on
from tests.kit.gpus import A6000

CLIENTS, TIMES = (1_000, 20) if os.environ.get("CARREL_SWEEP") else (60, 2)


async def test_the_last_gpu_is_booked_exactly_once(database: Database) -> None:
    """By clients of two replicas."""
    others = Database(database.url.render_as_string(hide_password=False))
    one, other = opened_on(database), opened_on(others)
    try:
        for time in range(TIMES):
            model = f"{A6000}-{time}"
            one.inventory.gpus[model] = other.inventory.gpus[model] = 1
            statuses = await asyncio.gather(
                *(_wish(other if client % 2 else one, f"p{time}-{client}@lab.org", model) for client in range(CLIENTS))
            )
            assert sorted(statuses) == [201] + [422] * (CLIENTS - 1)
    finally:
        await others.aclose()


async def test_one_person_who_asks_many_times_at_once_gets_one_booking(database: Database) -> None:
    opened = opened_on(database)
    opened.inventory.gpus[A6000] = 100

    statuses = await asyncio.gather(*(_wish(opened, "ada@lab.org", A6000) for _ in range(20)))

    assert sorted(statuses) == [201] + [422] * 19


async def test_who_is_removed_does_not_book_by_a_request_that_waits_for_the_removal(opened: Opened) -> None:
    ada, root = Person(MEMBER), Person("root@lab.org", roles=frozenset({Role.PLATFORM_ADMIN}))
    await made(await opened.caller(MEMBER), start=at(1), end=at(2))
    request = BookingRequest(A6000, start=NOW + DAY, end=NOW + 2 * DAY)

    async with opened.service.queries.store.writing():
        removed = asyncio.create_task(opened.service.removal.remove(MEMBER, root, "left the lab"))
        await asyncio.sleep(0)  # until it waits for the other writers
        booked = asyncio.create_task(opened.service.commands.create(request, ada))
        await asyncio.sleep(0)
    await removed
    refused = await booked

    assert isinstance(refused, BookingRefusal)
    assert refused.message == f"{MEMBER} was removed while this request waited."
    opened.clock.now += DAY / 24
    assert isinstance(await opened.service.commands.create(request, ada), BookingRecord), "who is let in again may book"


async def test_a_token_that_is_revoked_while_its_use_is_noted_is_not_valid(database: Database) -> None:
    people = SqlPeople(database)
    await people.add_token("hash", Token("t1", MEMBER, "cli", frozenset({Scope.BOOK}), NOW, NOW + DAY))

    used, _ = await asyncio.gather(people.token("hash", NOW), people.revoke_token(MEMBER, "t1", NOW))

    assert used is None


async def test_a_login_and_the_token_that_it_is_exchanged_for_are_never_both_there_nor_both_missing(
    database: Database,
) -> None:
    """So whoever is signed out in between loses the one or the other."""
    people, login = SqlPeople(database), PendingLogin({"email": MEMBER}, NOW + DAY)
    token = Token("t1", MEMBER, "cli", frozenset({Scope.BOOK}), NOW, NOW + DAY)
    await people.begin_login("code", login)
    await people.add_token("hash", token)

    with pytest.raises(SQLAlchemyError):
        await people.take_login("code", NOW, lambda _: ("hash", token))
    assert await people.take_login("code", NOW, lambda _: ("another", replace(token, id="t2"))) == login
    assert await people.token("another", NOW) is not None
    assert await people.take_login("code", NOW) is None


async def _wish(opened: Opened, email: str, model: str) -> int:
    caller = await opened.caller(email)
    return (await caller.book(model=model, days=2)).status
