"""Many clients want the last GPU: exactly one gets it. `CARREL_SWEEP=1` makes it 1,000 clients, twenty times."""

import asyncio
import os

from carrel.bookings.store.database import Database
from tests.kit.booking import Opened, opened_on
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


async def _wish(opened: Opened, email: str, model: str) -> int:
    caller = await opened.caller(email)
    return (await caller.book(model=model, days=2)).status
