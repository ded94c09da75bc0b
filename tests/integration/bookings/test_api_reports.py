"""The API about the lab: usage, the feed, the rules, the log, probes, and a database that is down."""

import pytest

from tests.kit.booking import DAY, MEMBER, NOW, OTHER, Answer, Caller, Opened, at, made
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
