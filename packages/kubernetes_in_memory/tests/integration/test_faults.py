"""Faults by seed: what is promised to have taken effect has, and one seed is one run."""

from contextlib import suppress
from itertools import groupby
from typing import Any

import pytest

from kubernetes_in_memory.faults import AnswerLost, Crashed, FaultPlan, Faulty
from kubernetes_in_memory.messages import HttpRequest
from packages.kubernetes_in_memory.tests.integration.caller import MERGE, Caller, api_of, config_map, embedded, names

MAPS = "/api/v1/namespaces/default/configmaps"


def faulty(healthy: Caller, **plan: Any) -> tuple[Caller, Faulty]:
    transport = Faulty(api_of(healthy), FaultPlan(**{"seed": 1, **plan}))
    return Caller(transport), transport


@pytest.mark.parametrize("k", [1, 2, 3])
async def test_a_crash_follows_the_write_and_is_permanent(call: Caller, k: int) -> None:
    process, faults = faulty(call, crash_after_write=k)
    made = 0
    with pytest.raises(Crashed):
        for made in range(5):
            await process.made(MAPS, config_map(f"m{made}"))
    assert made == k - 1
    assert len(names(await call("GET", MAPS))) == k
    with pytest.raises(Crashed):
        await process("GET", MAPS)
    assert faults.story == [f"call {k}, POST {MAPS}: crashed after write {k}"]


async def test_a_refused_write_and_a_dry_run_do_not_count_as_writes(call: Caller) -> None:
    process, faults = faulty(call, crash_after_write=2)
    await process.made(MAPS, config_map())
    assert (await process("POST", MAPS, config_map())).status == 409
    assert (await process("POST", MAPS, config_map("two"), dryRun="All")).status == 201
    assert faults.writes == 1


async def test_a_refused_write_wrote_nothing(call: Caller) -> None:
    process, _ = faulty(call, refuse=1.0)
    answers = [await process("POST", MAPS, config_map(f"m{n}")) for n in range(20)]
    assert {answer.status for answer in answers} == {429, 500}
    assert names(await call("GET", MAPS)) == []


async def test_an_update_may_be_refused_with_a_conflict(call: Caller) -> None:
    await call.made(MAPS, config_map())
    process, _ = faulty(call, refuse=1.0)
    answers = [await process("PATCH", f"{MAPS}/one", {"data": {"n": str(n)}}, MERGE) for n in range(30)]
    assert {answer.status for answer in answers} == {409, 429, 500}


async def test_a_write_whose_answer_is_lost_took_effect(call: Caller) -> None:
    process, faults = faulty(call, lose_answer=1.0)
    with pytest.raises(AnswerLost):
        await process("POST", MAPS, config_map())
    assert names(await call("GET", MAPS)) == ["one"]
    assert "the answer was lost" in faults.story[0]


async def test_a_stale_list_shows_an_older_state(call: Caller) -> None:
    for number in range(10):
        await call.made(MAPS, config_map(f"m{number}"))
    process, _ = faulty(call, stale_list=1.0, stale_by=8)
    lists = [await process("GET", MAPS) for _ in range(20)]
    assert len({len(names(answer)) for answer in lists}) > 3
    for answer in lists:
        # Each is a true state, with its own version: a watch from there catches up.
        version = answer.body["metadata"]["resourceVersion"]
        async with call.watching(MAPS, resourceVersion=version, timeoutSeconds="1") as events:
            later = [await events.next() for _ in range(10 - len(names(answer)))]
        assert len(names(answer)) + len(later) == 10


async def test_a_dropped_watch_can_be_resumed_without_loss(call: Caller) -> None:
    process, faults = faulty(call, drop_watch=0.3, double_event=0.3)
    version = (await call("GET", MAPS)).body["metadata"]["resourceVersion"]
    for number in range(30):
        await call.made(MAPS, config_map(f"m{number:02}"))
    seen: list[str] = []
    while len(set(seen)) < 30:
        async with process.watching(MAPS, resourceVersion=version, timeoutSeconds="1") as events:
            for event in await events.all():
                seen.append(event["object"]["metadata"]["name"])
                version = event["object"]["metadata"]["resourceVersion"]
    assert [name for name, _ in groupby(seen)] == sorted(set(seen)), "in order, and twice only in a row"
    assert len(seen) > 30, "some came twice"
    assert any("ended before" in line for line in faults.story)


async def test_late_events_stay_in_order(call: Caller) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    process = Caller(Faulty(api_of(call), FaultPlan(seed=3, delay_event=0.5), sleep))
    async with process.watching(MAPS) as events:
        for number in range(10):
            await call.made(MAPS, config_map(f"m{number}"))
        seen = [(await events.next())["object"]["metadata"]["name"] for _ in range(10)]
    assert seen == [f"m{number}" for number in range(10)]
    assert slept


async def test_410_is_sent_as_status_and_as_event(call: Caller) -> None:
    process, faults = faulty(call, expire_watch=1.0)
    forms = set()
    for _ in range(20):
        answer = await process.transport.send(HttpRequest("GET", MAPS, {"watch": "1", "resourceVersion": "1"}))
        if answer.stream is None:
            forms.add(("status", answer.status))
        else:
            forms.add(("event", b'"code":410' in b"".join([chunk async for chunk in answer.stream])))
    assert forms == {("status", 410), ("event", True)}
    assert len(faults.story) == 20


async def test_one_seed_is_one_run() -> None:
    async def story(seed: int) -> list[str]:
        healthy = embedded()
        process, faults = faulty(healthy, seed=seed, refuse=0.3, lose_answer=0.3, stale_list=0.3)
        for number in range(40):
            with suppress(AnswerLost):
                await process("POST", MAPS, config_map(f"m{number}"))
            await process("GET", MAPS)
        return faults.story

    assert await story(7) == await story(7)
    assert await story(7) != await story(8)
