"""Bad input gets a clear error that says what was expected, and changes nothing."""

import json
from typing import Any
from urllib.parse import unquote

import pytest

from tests.kit.booking import MEMBER, Opened, at
from tests.kit.gpus import A6000

BOOKINGS = "/api/v1/bookings"


@pytest.mark.parametrize(
    ("asked", "status", "codes"),
    [
        pytest.param({"start": at(3), "end": at(1)}, 422, ["end-after-start"], id="the end before the start"),
        pytest.param({"start": at(1), "end": "2026-11-18T11:59:59Z"}, 422, ["min-duration"], id="24 h − 1 s"),
        pytest.param({"start": at(1), "end": "2026-12-01T12:00:01Z"}, 422, ["max-duration"], id="336 h + 1 s"),
        pytest.param({"start": "2001-01-01T00:00:00Z", "days": 1}, 422, ["not-in-the-past"], id="the year 2001"),
        pytest.param({"start": "1900-01-01T08:00:00Z", "days": 1}, 400, ["malformed"], id="the year 1900"),
        pytest.param({"start": "9999-12-31T23:59:59Z", "days": 1}, 400, ["malformed"], id="the year 9999"),
        pytest.param({"start": at(1), "end": "2199-12-31T23:59:59Z"}, 422, ["max-duration"], id="the year 2199"),
        pytest.param({"start": "2026-11-18T12:00:00", "days": 1}, 400, ["malformed"], id="a naive time"),
        pytest.param({"start": "2027-02-30T12:00:00Z", "days": 1}, 400, ["malformed"], id="30 February"),
        pytest.param({"start": "2026-11-18", "days": 1}, 400, ["malformed"], id="a date where an instant is expected"),
        pytest.param({"start": 1763467200, "days": 1}, 400, ["malformed"], id="seconds since 1970"),
        pytest.param({"days": 0}, 400, ["malformed"], id="no days"),
        pytest.param({"days": -1}, 400, ["malformed"], id="a negative number of days"),
        pytest.param({"days": 1e308}, 400, ["malformed"], id="too many days"),
        pytest.param({"days": 1, "end": at(1)}, 400, ["malformed"], id="two ends"),
        pytest.param({}, 400, ["malformed"], id="no end"),
        pytest.param({"days": 1, "gpus": 0}, 400, ["malformed"], id="no GPUs"),
        pytest.param({"days": 1, "gpus": 2**63}, 400, ["malformed"], id="2^63 GPUs"),
        pytest.param({"days": 1, "gpus": 1.5}, 400, ["malformed"], id="one and a half GPUs"),
        pytest.param({"days": 1, "gpus": True}, 400, ["malformed"], id="true"),
        pytest.param({"days": 1, "gpus": 3}, 422, ["capacity"], id="more GPUs than there are"),
        pytest.param({"days": 1, "gpus": 0}, 400, ["malformed"], id="no GPUs by the new name"),
        pytest.param({"days": 1, "user": "a b@x", "reason": "r"}, 400, ["malformed"], id="for an address with a space"),
        pytest.param(
            {"days": 1, "user": "bob", "reason": "r"}, 400, ["malformed"], id="for something else than an address"
        ),
        pytest.param({"days": 1, "model": ""}, 400, ["malformed"], id="no model"),
        pytest.param({"days": 1, "model": "h100"}, 422, ["unknown-model"], id="a model that is not there"),
        pytest.param({"days": 1, "model": "\x00"}, 400, ["malformed"], id="a NUL"),
        pytest.param({"days": 1, "note": "\x00"}, 400, ["malformed"], id="a NUL in the note"),
        pytest.param({"days": 1, "note": "\ud800"}, 400, ["malformed"], id="a lone surrogate"),
        pytest.param({"days": 1, "note": "x" * 2001}, 400, ["malformed"], id="a long note"),
        pytest.param({"days": 1, "nodes": 1}, 400, ["malformed"], id="a field that does not exist"),
        pytest.param({"days": 1, "\ud800": 1}, 400, ["malformed"], id="a field name that is a lone surrogate"),
        pytest.param({"days": "x", "gpus": 0, "start": "now"}, 400, ["malformed"] * 3, id="all mistakes at once"),
    ],
)
async def test_an_impossible_booking_is_refused(
    opened: Opened, asked: dict[str, Any], status: int, codes: list[str]
) -> None:
    ada = await opened.caller(MEMBER)

    answer = await ada.book(**asked)

    assert (answer.status, answer.codes) == (status, codes)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await ada.get(BOOKINGS)).json["items"] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="nothing"),
        pytest.param(b"[]", 400, id="a list"),
        pytest.param(b'{"model": "a6000", "days": 1', 400, id="truncated"),
        pytest.param(b"\xff\xfe", 400, id="no text"),
        pytest.param(b'{"model": "a6000", "days": NaN}', 400, id="not a number"),
        pytest.param(b"[" * 50_000, 400, id="deeply nested"),
        pytest.param(b'{"note": "' + b"x" * 10_000_000 + b'"}', 413, id="10 MB"),
    ],
)
async def test_a_malformed_body_is_refused(opened: Opened, body: bytes, status: int) -> None:
    ada = await opened.caller(MEMBER)

    answer = await ada.post(BOOKINGS, body)

    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert "route" not in answer.json["detail"], "it is the body that is wrong"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param(f"{BOOKINGS}/nothing", 404, id="no such booking"),
        pytest.param(f"{BOOKINGS}/%00", 404, id="an impossible id"),
        pytest.param(f"{BOOKINGS}?cursor=x", 400, id="a made-up cursor"),
        pytest.param(f"{BOOKINGS}?cursor=MjAyNi0xMS0xNlQxMjowMDowMFogAA==", 400, id="a cursor with a NUL"),
        pytest.param(f"{BOOKINGS}?limit=0", 400, id="an empty page"),
        pytest.param(f"{BOOKINGS}?state=lost", 400, id="no such state"),
        pytest.param(f"{BOOKINGS}?q=%00", 400, id="searching for a NUL"),
        pytest.param(f"{BOOKINGS}?start=2026-11-16", 400, id="a date where an instant is expected"),
        pytest.param("/api/v1/availability?start=9999-12-31&days=366", 400, id="days beyond the calendar"),
        pytest.param("/api/v1/availability?start=2026-02-30", 400, id="30 February"),
        pytest.param("/api/v1/next-free?model=a6000&days=nan", 400, id="not a number of days"),
        pytest.param("/api/v1/next-free", 400, id="no model"),
        pytest.param("/api/v1/audit?before=9223372036854775808", 400, id="2^63"),
        pytest.param("/api/v1/feeds/%C3%A9.ics", 404, id="no such feed"),
        pytest.param("/api/v1/nothing", 404, id="nothing there"),
    ],
)
async def test_a_malformed_query_is_refused(opened: Opened, path: str, status: int) -> None:
    ada = await opened.caller(MEMBER)
    route, _, query = path.partition("?")
    answer = await ada.get(f"{unquote(route)}?{query}")

    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "clé"])
async def test_a_malformed_idempotency_key_is_refused(opened: Opened, key: str) -> None:
    ada = await opened.caller(MEMBER)

    answer = await ada.post(BOOKINGS, {"model": A6000, "days": 1}, idempotency_key=key)

    assert (answer.status, answer.codes) == (400, ["malformed"])


async def test_html_in_text_stays_text(opened: Opened) -> None:
    ada = await opened.caller(MEMBER)
    note = "<script>alert('🙂')</script>"

    answer = await ada.book(days=1, note=note)

    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["note"] == note
