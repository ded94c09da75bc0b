"""A process that is killed at the k-th step of a booking, for every k; then another one that sends the request again.

    python -m tests.integration.bookings.killed_process DATABASE_URL

Prints one JSON line per k. It forks, because starting Python anew for every k would take minutes: nothing is connected
and no loop runs before the fork.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from sqlalchemy import event

from carrel.bookings.store.database import Database
from tests.kit.booking import Caller, Opened, opened_on

ACKNOWLEDGED, REFUSED = 0, 3


def main(url: str) -> None:
    _forked(lambda: asyncio.run(Database(url).migrate()))
    database = Database(url)
    opened = opened_on(database)
    asyncio.run(opened.nobody.get("/healthz"))  # so that not every child repeats what an app does at its first call
    k = 0
    while True:
        outcome = _forked(lambda k=k: asyncio.run(_book(opened, database, k)))
        found = _told(lambda k=k: asyncio.run(_look_and_ask_again(opened, k)))
        print(json.dumps({"k": k, "outcome": outcome, **found}), flush=True)
        if outcome == ACKNOWLEDGED:
            return
        k += 1


async def _book(opened: Opened, database: Database, k: int) -> None:
    _die_at(database, k)
    answer = await _ask(opened, k)
    os._exit(ACKNOWLEDGED if answer == 201 else REFUSED)


def _die_at(database: Database, step: int) -> None:
    """Steps: before and after each statement, before and after the commit."""
    left = step

    def maybe_die(*_: Any) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    engine = database.engine.sync_engine
    for moment in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(engine, moment, maybe_die)
    commit = engine.dialect.do_commit

    def commit_and_maybe_die(connection: Any) -> None:
        commit(connection)
        maybe_die()

    engine.dialect.do_commit = commit_and_maybe_die  # type: ignore[assignment,method-assign] # there is no event after it


async def _look_and_ask_again(opened: Opened, who: int) -> dict[str, Any]:
    before = await _state(opened, who)
    again = await _ask(opened, who)
    after = await _state(opened, who)
    return {"before": before, "again": again, "after": after}


async def _ask(opened: Opened, who: int) -> int:
    caller = await _caller(opened, who)
    answer = await caller.post("/api/v1/bookings", {"model": f"A6000-{who}", "days": 2}, idempotency_key=f"key-{who}")
    return answer.status


async def _state(opened: Opened, who: int) -> dict[str, int]:
    caller = await _caller(opened, who)
    bookings = (await caller.get("/api/v1/bookings?user=me")).json["items"]
    log = (await caller.get("/api/v1/audit")).json["items"]
    return {"bookings": len(bookings), "log": len(log)}


async def _caller(opened: Opened, who: int) -> Caller:
    opened.inventory.gpus[f"A6000-{who}"] = 1
    return await opened.caller(f"p{who}@lab.org")


def _forked(work: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _told(work: Any) -> dict[str, Any]:
    """The answer of a forked process."""
    read, write = os.pipe()

    def tell() -> None:
        os.write(write, json.dumps(work()).encode())

    _forked(tell)
    os.close(write)
    with os.fdopen(read) as pipe:
        told: dict[str, Any] = json.loads(pipe.read())
    return told


if __name__ == "__main__":
    main(sys.argv[1])
