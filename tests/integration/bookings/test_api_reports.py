"""The API about the lab: usage, the feed, the rules, the log, probes, and a database that is down."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carrel.bookings.app import booking_app
from carrel.bookings.usage.sums import Gap, Progress, UsageAmount, UsageKey
from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier
from tests.kit.booking import ADMIN, DAY, MEMBER, NOW, OTHER, Answer, Caller, Opened, at, made
from tests.kit.gpus import A6000

BOOKINGS = "/api/v1/bookings"


async def test_usage_counts_gpu_hours_and_shows_members_only_their_own(
    opened: Opened, ada: Caller, bob: Caller, eva: Caller
) -> None:
    await made(ada, days=2, gpus=2)
    booking = await made(bob, start=at(3), days=2)
    opened.clock.now = NOW + 4 * DAY
    await bob.post(f"{BOOKINGS}/{booking['id']}/cancel")

    query = f"/api/v1/usage?start={at(1)}&end={at(10)}"
    everybody = (await eva.get(query)).json["items"]

    assert [(use["user"], use["gpu_hours"]) for use in everybody] == [(MEMBER, 48.0), (OTHER, 24.0)]
    assert [use["user"] for use in (await bob.get(query)).json["items"]] == [OTHER]
    assert (await bob.get(f"/api/v1/usage?start={at(2)}&end={at(1)}")).status == 400


HELD = {
    ("GPU-1", MEMBER, Tier.BOOKED): UsageAmount(3600, 3600, 900),
    ("GPU-1", OTHER, Tier.OPPORTUNISTIC): UsageAmount(420, 0, 0),
    ("GPU-2", OTHER, None): UsageAmount(1800, 1800, 0),
}


async def with_usage(opened: Opened, hour: datetime = NOW) -> None:
    """The service has a cluster in which this was held in that hour."""
    sums = {UsageKey(hour, GpuUuid(gpu), A6000, who, tier): each for (gpu, who, tier), each in HELD.items()}
    start = hour - DAY
    assert await opened.usage.write(None, Progress(start), {}, UTC)
    gap = Gap(start, start + timedelta(hours=7))
    assert await opened.usage.write(start, Progress(hour + timedelta(hours=1)), sums, UTC, [gap])
    opened.service = replace(opened.service, usage=opened.usage)
    opened.app = booking_app(opened.service)


def hours(items: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(each[name] for name in names) for each in items]


async def test_usage_says_what_was_held_active_idle_and_unknown_to_whom_it_concerns(opened: Opened) -> None:
    await with_usage(opened)
    opened.clock.now = NOW + DAY
    eva, bob = await opened.caller(ADMIN), await opened.caller(OTHER)

    everybody = (await eva.get("/api/v1/usage")).json
    own = (await bob.get("/api/v1/usage")).json["items"]

    names = ("user", "held_gpu_hours", "active_gpu_hours", "idle_gpu_hours", "unknown_gpu_hours", "covered_gpu_hours")
    assert hours(everybody["items"], *names) == [
        (MEMBER, 1.0, 0.25, 0.75, 0.0, 1.0),
        (OTHER, 0.6167, 0.0, 0.5, 0.1167, 0.0),
    ]
    assert everybody["gaps"] == [{"start": at(-1), "end": "2026-11-15T19:00:00Z"}]
    assert (everybody["held_since"], everybody["held_until"]) == (at(-1), "2026-11-16T13:00:00Z")
    assert hours(own, "user", "held_gpu_hours", "opportunistic_gpu_hours") == [(OTHER, 0.6167, 0.1167)]


async def test_sums_of_everybody_by_model_are_for_everybody_and_hours_on_single_gpus_are_not(opened: Opened) -> None:
    await with_usage(opened)
    opened.clock.now = NOW + DAY
    eva, bob = await opened.caller(ADMIN), await opened.caller(OTHER)

    (model,) = (await bob.get("/api/v1/usage?by=model")).json["items"]
    by_gpu = {name: (await who.get("/api/v1/usage?by=gpu")).json["items"] for name, who in (("eva", eva), ("bob", bob))}

    assert (model["model"], model["user"], model["held_gpu_hours"]) == (A6000, "", 1.6167)
    assert sorted(hours(by_gpu["eva"], "gpu", "held_gpu_hours")) == [("GPU-1", 1.1167), ("GPU-2", 0.5)]
    assert sorted(hours(by_gpu["bob"], "gpu", "held_gpu_hours")) == [("GPU-1", 0.1167), ("GPU-2", 0.5)]
    assert {use["gpu_hours"] for use in by_gpu["eva"]} == {None}, "bookings are of models"


async def test_usage_by_the_day_is_cut_where_the_labs_days_begin(opened: Opened, ada: Caller) -> None:
    await made(ada, days=2)
    await with_usage(opened)
    opened.clock.now = NOW + 2 * DAY
    eva = await opened.caller(ADMIN)

    items = (await eva.get(f"/api/v1/usage?by=model&step=day&start={at(0)}&end={at(2)}")).json["items"]

    assert hours(items, "start", "gpu_hours", "held_gpu_hours") == [
        (at(0), 11.0, 1.6167),
        ("2026-11-16T23:00:00Z", 24.0, 0.0),
        ("2026-11-17T23:00:00Z", 13.0, 0.0),
    ]


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("step=day&start=1990-01-01T00:00:00Z", id="too many days"),
        pytest.param("step=fortnight", id="a step that is none"),
        pytest.param("by=secret", id="rows of something else"),
    ],
)
async def test_a_question_about_usage_that_makes_no_sense_is_refused(opened: Opened, eva: Caller, query: str) -> None:
    await with_usage(opened)
    answer = await (await opened.caller(ADMIN)).get(f"/api/v1/usage?{query}")
    assert answer.status == 400 and answer.json["code"] == "malformed"


@pytest.mark.parametrize("step", ["whole", "month"])
async def test_usage_of_a_time_that_is_far_away_is_answered(opened: Opened, step: str) -> None:
    await with_usage(opened)
    last = {"whole": "2199-12-31T23:59:59Z", "month": "2040-01-01T00:00:00Z"}[step]
    query = f"by=model&step={step}&start=1970-01-01T00:00:00Z&end={last}"
    answer = await (await opened.caller(ADMIN)).get(f"/api/v1/usage?{query}")
    assert answer.status == 200 and hours(answer.json["items"], "held_gpu_hours") == [(1.6167,)]


async def test_what_a_person_cancels_makes_the_feed_no_longer_than_it_must_be(opened: Opened, ada: Caller) -> None:
    for _ in range(52):
        planned = await made(ada, start=at(3), days=1)
        assert (await ada.post(f"/api/v1/bookings/{planned['id']}/cancel")).status == 200
    last = await made(ada, start=at(3), days=1)
    address = (await ada.post("/api/v1/feed")).json["url"].removeprefix("http://carrel.test")

    feed = (await opened.nobody.get(address)).body.decode()

    assert (feed.count("STATUS:CANCELLED"), feed.count("STATUS:CONFIRMED")) == (50, 1)
    assert f"UID:{last['id']}@carrel" in feed


async def test_the_feed_is_a_calendar_with_a_secret_that_can_be_revoked(opened: Opened, ada: Caller) -> None:
    await made(ada, start=at(1), days=2, note="Läufe; viele, " + "sehr " * 20 + "lange")
    address = (await ada.post("/api/v1/feed")).json["url"].removeprefix("http://carrel.test")

    feed = await opened.nobody.get(address)

    assert (feed.status, feed.headers["content-type"]) == (200, "text/calendar; charset=utf-8")
    lines = feed.body.split(b"\r\n")
    assert max(map(len, lines)) <= 75
    text = feed.body.replace(b"\r\n ", b"").decode()
    assert (
        "DTSTART:20261117T120000Z\r\nDTEND:20261119T120000Z\r\nSTATUS:CONFIRMED\r\nSUMMARY:GPU: NVIDIA-RTX-A6000"
        in text
    )
    assert "DESCRIPTION:2 d · Läufe\\; viele\\, sehr" in text
    second = (await ada.post("/api/v1/feed")).json["url"].removeprefix("http://carrel.test")
    assert (await opened.nobody.get(address)).status == 404
    assert (await opened.nobody.get(second)).status == 200
    assert (await ada.delete("/api/v1/feed")).status == 204
    assert (await opened.nobody.get(second)).status == 404


async def test_the_rules_are_shown_with_their_limits(ada: Caller) -> None:
    shown = (await ada.get("/api/v1/rules")).json
    rules = shown.pop("rules")

    assert shown == {
        "min_hours": 24.0,
        "max_hours": 336.0,
        "cooldown_hours": 336.0,
        "planned": 1,
        "shares_per_gpu": 1,
        "zone": "Europe/Stockholm",
    }
    assert {rule["field"]: rule["value"] for rule in rules if rule["field"]} == {
        "bookings.rules.minDuration": "1d",
        "bookings.rules.maxDuration": "14d",
        "bookings.rules.maxGpus": "4",
        "bookings.rules.groupMaxGpus": "0",
        "bookings.rules.sharesPerGpu": "1",
        "bookings.rules.planned": "1",
        "bookings.rules.cooldown": "14d",
    }
    assert {"code": "cooldown", "title": "Cooldown not over", "words": "14 d since the last one"}.items() <= next(
        rule.items() for rule in rules if rule["code"] == "cooldown"
    )


async def test_the_log_comes_in_pages_newest_first(opened: Opened, eva: Caller) -> None:
    opened.inventory.gpus[A6000] = 10
    for number in range(5):
        await made(eva, user=f"p{number}@lab.org", reason=f"r{number}", days=1)

    first = (await eva.get("/api/v1/audit?limit=2")).json
    second = (await eva.get(f"/api/v1/audit?limit=3&before={first['next_before']}")).json

    assert [entry["why"] for entry in first["items"] + second["items"]] == ["r4", "r3", "r2", "r1", "r0"]
    assert first["items"][0]["details"] == {"model": A6000, "start": at(0), "end": at(1), "gpus": "1", "version": "1"}


async def test_probes_and_metrics(opened: Opened, ada: Caller) -> None:
    await made(ada, days=1)

    assert (await opened.nobody.get("/healthz")).body == (await opened.nobody.get("/readyz")).body == b"ok"
    figures = (await opened.nobody.get("/metrics")).body.decode()
    assert f'carrel_unbooked_gpus{{model="{A6000}"}} 1.0' in figures
    assert 'carrel_booking_calls_total{method="POST",status="201"} 1.0' in figures
    assert MEMBER not in figures


def _is_problem(answer: Answer) -> bool:
    return answer.headers["content-type"] == "application/problem+json" and "Traceback" not in answer.body.decode()


async def test_a_database_that_is_down_is_a_503_with_an_explanation(
    opened: Opened, ada: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from carrel.bookings.queries import BookingQueries
    from carrel.bookings.records import StoreUnavailable

    async def gone(*_: object) -> None:
        raise StoreUnavailable("disk I/O error")

    monkeypatch.setattr(BookingQueries, "find", gone)
    answer = await ada.get(BOOKINGS)

    assert (answer.status, answer.json["code"], _is_problem(answer)) == (503, "store-unavailable", True)
