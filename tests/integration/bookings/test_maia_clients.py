"""MAIA's webhook and clients are answered with MAIA's own JSON, byte for byte."""

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.kit.booking import ADMIN, DAY, MAIA_TOKEN, MEMBER, NOW, Answer, Opened, at
from tests.kit.gpus import A6000

ADDRESSES = [
    "/maia-api/gpu-schedulability/",
    "/maia-api/gpu-schedulability",
    "/maia/gpu-booking/gpu-schedulability/",
    "/maia/gpu-booking/gpu-schedulability",
]
SUMMARIES = [
    "/maia-api/gpu-stats/",
    "/maia-api/gpu-stats",
    "/maia/resources/gpu_status_summary/",
    "/maia/resources/gpu_status_summary",
]


async def ask(opened: Opened, address: str = ADDRESSES[0], **more: Any) -> Answer:
    body = {"user_email": MEMBER, "namespace": "lab-x", "token": MAIA_TOKEN, **more}
    return await opened.nobody.post(address, body)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_schedulable_means_that_a_booking_is_active_now(opened: Opened, address: str) -> None:
    ada = await opened.caller(MEMBER)
    await ada.book(start=at(1), days=2)

    before = await ask(opened, address)
    opened.clock.now = NOW + DAY
    during = await ask(opened, address)
    opened.clock.now = NOW + 3 * DAY
    after = await ask(opened, address)

    assert during.body == b'{"schedulable": true, "until": "2026-11-19T12:00:00Z", "gpu": "NVIDIA-RTX-A6000"}'
    assert before.body == after.body == b'{"schedulable": false, "until": null}'
    assert (during.status, during.headers["content-type"]) == (200, "application/json")


async def test_the_token_may_come_as_a_bearer_token_and_field_names_in_any_letter_case(opened: Opened) -> None:
    ada = await opened.caller(MEMBER)
    await ada.book(days=2)
    asked = {"User_Email": MEMBER, "Namespace": "lab-x"}

    answers = [
        await opened.nobody.post(ADDRESSES[0], asked, authorization=header)
        for header in (f"Bearer {MAIA_TOKEN}", "Bearer wrong", MAIA_TOKEN)
    ]

    assert [answer.status for answer in answers] == [200, 403, 403]
    assert answers[0].json["schedulable"] is True


async def test_a_booking_for_one_namespace_does_not_count_in_another(opened: Opened) -> None:
    ada = await opened.caller(MEMBER)
    await ada.book(days=2, namespace="Lab_X")

    assert (await ask(opened, namespace="lab-x")).json["schedulable"] is True
    assert (await ask(opened, namespace="lab-y")).json["schedulable"] is False
    assert (await ask(opened, user_email="ADA@lab.org")).json["schedulable"] is True


async def test_a_booking_is_made_in_the_labs_own_time(opened: Opened) -> None:
    wish = {"gpu": "NVIDIA-RTX-A6000", "starting_time": "2026-11-17 13:00:00", "ending_time": "2026-11-20 13:00:00"}

    made = await ask(opened, booking=wish)
    again = await ask(opened, booking=wish)

    assert (made.status, made.body) == (200, b'{"message": "Booking created successfully"}')
    assert again.status == 400
    assert again.json["error"].splitlines() == [
        "You may have 1 planned booking at a time; you have NVIDIA-RTX-A6000 from Tue 17 Nov 2026 13:00 CET.",
        "14 d must lie between two bookings; yours of NVIDIA-RTX-A6000 ends Fri 20 Nov 2026 13:00 CET."
        " The next may start Fri 04 Dec 2026 13:00 CET.",
    ]
    eva = await opened.caller(ADMIN)
    booking = (await eva.get("/api/v1/bookings")).json["items"][0]
    assert (booking["user"], booking["start"], booking["end"]) == (MEMBER, at(1), at(4))
    assert (booking["created_by"], booking["reason"], booking["namespace"]) == ("maia", "booked through MAIA", "lab-x")


async def test_a_client_may_book_for_a_user_name_without_an_address(opened: Opened) -> None:
    wish = {"gpu": A6000, "starting_time": "2026-11-17 13:00:00", "ending_time": "2026-11-20 13:00:00"}

    booked = await ask(opened, user_email="Ada", booking=wish)
    refused = [await ask(opened, user_email=name, booking=wish) for name in (" ", "a da", "ada\u200b")]
    opened.clock.now = NOW + 2 * DAY

    assert booked.status == 200
    assert [answer.status for answer in refused] == [400, 400, 400]
    assert (await ask(opened, user_email="ada")).json["schedulable"] is True


@pytest.mark.parametrize("token", ["", "wrong", MAIA_TOKEN + "x", "tökén"])
async def test_a_caller_without_the_token_is_told_nothing(opened: Opened, token: str) -> None:
    answer = await ask(opened, token=token)

    assert (answer.status, answer.body) == (403, b'{"error": "The token is wrong."}')


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="truncated"),
        pytest.param(b"[]", id="a list"),
        pytest.param(json.dumps({"token": MAIA_TOKEN, "namespace": "x"}).encode(), id="no user"),
        pytest.param(
            json.dumps(
                {"token": MAIA_TOKEN, "user_email": "a", "booking": {"gpu": "x", "starting_time": "now"}}
            ).encode(),
            id="an impossible time",
        ),
    ],
)
async def test_malformed_input_is_refused_in_maias_json(opened: Opened, body: bytes) -> None:
    answer = await opened.nobody.post(ADDRESSES[0], body)

    assert answer.status == 400
    assert list(answer.json) == ["error"]


@pytest.mark.parametrize("year", ["1900", "9999"])
async def test_a_booking_in_an_impossible_year_is_refused(opened: Opened, year: str) -> None:
    wish = {"gpu": A6000, "starting_time": f"{year}-12-18 13:00:00", "ending_time": f"{year}-12-30 13:00:00"}

    answer = await ask(opened, booking=wish)

    assert (answer.status, list(answer.json)) == (400, ["error"])
    assert (await (await opened.caller(MEMBER)).book(days=2)).status == 201, "nothing was booked before"


@pytest.mark.parametrize(
    "text", ["\x00", "\ud800", "x" * 1000], ids=["a NUL", "half a character", "more than a column has"]
)
async def test_text_that_no_database_can_store_is_refused(on_both: Opened, text: str) -> None:
    wish = {"gpu": A6000, "starting_time": "2026-11-17 13:00:00", "ending_time": "2026-11-20 13:00:00"}

    for more in ({"user_email": f"a{text}"}, {"namespace": text, "booking": wish}, {"booking": {**wish, "gpu": text}}):
        answer = await ask(on_both, **more)
        assert (answer.status, list(answer.json)) == (400, ["error"])


@pytest.mark.parametrize("address", SUMMARIES)
async def test_the_summary_counts_free_gpus_by_model(opened: Opened, address: str) -> None:
    ada = await opened.caller(MEMBER)
    await ada.book(days=1)
    opened.clock.now = NOW + timedelta(hours=1)

    answer = await opened.nobody.get(address)

    assert answer.body == b'{"gpu": {"NVIDIA-RTX-A6000": 1}, "gpu_allocations": {}}'
    assert A6000 == "NVIDIA-RTX-A6000"
