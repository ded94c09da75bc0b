"""`carrel snapshot` asks the booking service for past use, and is taken without it whatever that answers."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from carrel.bookings.app import booking_app
from carrel.bookings.usage.sums import Progress, UsageAmount, UsageKey, hour_of
from carrel.cli import booking_client
from carrel.http.serving import Address, serving
from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier
from carrel.parsing.time import instant
from kubernetes_in_memory.http_server import serve
from tests.integration.bookings.conftest import opened, with_tables
from tests.kit.booking import ADMIN, MEMBER, OTHER, Opened
from tests.kit.carrel_command import Result, carrel
from tests.kit.gpus import A6000, a_node
from tests.kit.lab import a_lab

__all__ = ["opened", "with_tables"]

HOUR, GPU = timedelta(hours=1), GpuUuid("GPU-1")
Answer = Callable[[web.Request], Any]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(booking_client, "PAUSES_S", ())


@asynccontextmanager
async def a_service(answer: Answer) -> AsyncIterator[tuple[str, list[web.Request]]]:
    seen: list[web.Request] = []

    async def respond(request: web.Request) -> web.Response:
        seen.append(request)
        found = answer(request)
        return found if isinstance(found, web.Response) else web.json_response(found)

    app = web.Application()
    app.router.add_get("/api/v1/usage", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    await runner.cleanup()


async def snapshot(home: Path, service: str, **environment: str) -> Result:
    async with a_lab([a_node("n1")], has_booker=False, in_real_time=True) as lab, serve(lab.api) as served:
        of = {"CARREL_URL": service, "CARREL_TOKEN": "carrel_x", "XDG_CONFIG_HOME": str(home), **environment}
        return await carrel("snapshot", "--server", served.url, **of)


def an_hour(start: datetime, **more: Any) -> dict[str, Any]:
    return {"user": "ada@lab.org", "model": A6000, "start": start.isoformat(), "bookings": 0, **more}


def every_hour(request: web.Request) -> Any:
    """Ada holds two GPUs all the time, and uses them for a half of each hour; a row of a group has no held hours."""
    start, end = (instant(request.query[name], "the question", name) for name in ("start", "end"))
    hours = [start + number * HOUR for number in range(-((start - end) // HOUR))]
    held = {"held_gpu_hours": 2.0, "active_gpu_hours": 1.0, "idle_gpu_hours": 1.0}
    return {"items": [*(an_hour(each, **held) for each in hours), an_hour(start, group="vision", held_gpu_hours=None)]}


async def test_past_use_is_asked_day_by_day_and_kept_for_28_days_without_names(tmp_path: Path) -> None:
    async with a_service(every_hour) as (url, seen):
        said = await snapshot(tmp_path, url)

    assert [(each.query["by"], each.query["step"]) for each in seen] == [("person", "hour")] * len(seen)
    assert 28 <= len(seen) <= 29
    assert seen[0].headers["authorization"] == "Bearer carrel_x"
    (use,) = json.loads(said.out)["use"]
    assert (use["user"], use["model"], use["firstHour"]) == ("user-1", A6000, -672)
    assert (use["held"], use["active"], use["idle"]) == ([2.0] * 672, [1.0] * 672, [1.0] * 672), "each hour once"
    assert "ada" not in said.out
    assert said.err == f"Past use of 1 person, as {url} shows it to you: to lab admins everybody's.\n"


async def test_the_hours_of_the_booking_service_are_in_the_snapshot_everybodys_for_a_lab_admin(
    opened: Opened, tmp_path: Path
) -> None:
    hour = hour_of(datetime.now(UTC), opened.service.lab_zone)
    sums = {
        UsageKey(hour - 2 * HOUR, GPU, A6000, MEMBER, Tier.BOOKED): UsageAmount(3600, 3600, 900),
        UsageKey(hour - 2 * HOUR, GPU, A6000, MEMBER, Tier.OPPORTUNISTIC): UsageAmount(1800),
        UsageKey(hour - 50 * HOUR, GPU, A6000, OTHER, None): UsageAmount(3600, 1800, 1800),
        UsageKey(hour, GPU, A6000, OTHER, None): UsageAmount(60),
    }
    assert await opened.usage.write(None, Progress(hour), sums, opened.service.lab_zone)
    service = replace(opened.service, usage=opened.usage)
    async with serving(booking_app(service), Address()) as url:
        admins = await snapshot(tmp_path, url, CARREL_TOKEN=(await opened.caller(ADMIN)).token)
        own = await snapshot(tmp_path, url, CARREL_TOKEN=(await opened.caller(MEMBER)).token)

    taken = json.loads(admins.out)
    since = -((instant(taken["taken"], "the snapshot", "taken") - (hour - 2 * HOUR)) // HOUR)  # -2, or an hour more
    of_member = {"model": A6000, "firstHour": since, "held": [1.5], "active": [0.25], "idle": [0.75]}
    of_other = {"model": A6000, "firstHour": since - 48, "held": [1.0], "active": [0.5], "idle": [0.0]}
    everybodys = [{name: each[name] for name in of_member} for each in taken["use"]]
    assert of_member in everybodys and of_other in everybodys
    assert len(json.loads(own.out)["use"]) == 1
    assert (admins.err[:20], own.err[:20]) == ("Past use of 2 people", "Past use of 1 person")


def the_last_hour(**more: Any) -> Answer:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - HOUR
    return lambda _: {"items": [{**an_hour(start, held_gpu_hours=1.0), **more}]}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(lambda _: web.json_response({"title": "No"}, status=403), ": No.", id="refused"),
        pytest.param(
            lambda _: web.json_response({"title": "Which step?"}, status=422), "Which step", id="an older one"
        ),
        pytest.param(lambda _: web.Response(text="<html>"), "something else than a JSON object", id="a page"),
        pytest.param(lambda _: {}, "items is missing", id="no items"),
        pytest.param(the_last_hour(held_gpu_hours=-1), "items[0].held_gpu_hours", id="less than nothing"),
        pytest.param(the_last_hour(held_gpu_hours="1"), "items[0].held_gpu_hours", id="a text"),
        pytest.param(the_last_hour(idle_gpu_hours=1e300), "items[0].idle_gpu_hours", id="more than there can be"),
        pytest.param(the_last_hour(start="yesterday"), "items[0].start", id="no instant"),
        pytest.param(the_last_hour(start="2026-11-17T04:00:00"), "items[0].start", id="an instant without a zone"),
        pytest.param(the_last_hour(user=None), "items[0].user", id="nobody"),
    ],
)
async def test_whatever_is_answered_the_snapshot_is_taken_and_says_why_past_use_is_not_in_it(
    tmp_path: Path, answer: Answer, why: str
) -> None:
    async with a_service(answer) as (url, _):
        said = await snapshot(tmp_path, url)

    assert said.code == 0
    assert "use" not in json.loads(said.out)
    assert said.err.startswith(f"Past use is not in the snapshot: {url}: ")
    assert why in said.err
    assert said.err.count("\n") == 1


async def test_hours_of_the_end_of_time_are_not_kept(tmp_path: Path) -> None:
    for start in ("0001-01-01T00:00:00+00:00", "9999-12-31T23:00:00+00:00"):
        async with a_service(the_last_hour(start=start)) as (url, _):
            said = await snapshot(tmp_path, url)

        assert (said.code, "use" in json.loads(said.out)) == (0, False)


async def test_a_token_is_not_sent_where_others_could_read_it(tmp_path: Path) -> None:
    said = await snapshot(tmp_path, "http://gpus.lab.example")

    assert (said.code, "use" in json.loads(said.out)) == (0, False)
    assert "http://gpus.lab.example (--insecure allows it).\n" in said.err


async def test_nobody_is_asked_without_a_token(tmp_path: Path) -> None:
    async with a_service(every_hour) as (url, seen):
        said = await snapshot(tmp_path, url, CARREL_TOKEN="")

    assert (said.code, seen) == (0, [])
    assert "you are not logged in to the booking service (carrel login)" in said.err
