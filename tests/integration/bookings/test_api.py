"""Bookings over the API: create, read, change, cancel, and what is refused."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from carrel.bookings.inventory import unheld_gpus
from carrel.bookings.people import Scope
from carrel.configuration.schema import BookingRules
from carrel.ids import PodUid
from carrel.ledger.ledger import Ledger
from tests.kit.booking import ADMIN, DAY, MEMBER, NOW, OTHER, Caller, Opened, at, made, with_rules
from tests.kit.gpus import A100, A6000, a_node, held
from tests.kit.lab import Clock

BOOKINGS = "/api/v1/bookings"


async def test_a_booking_is_made_and_shown(ada: Caller) -> None:
    answer = await ada.post(BOOKINGS, {"model": "a6000", "start": at(1), "end": at(3), "gpus": 2, "note": "🙂 <b>"})

    assert answer.status == 201
    booking = answer.json
    assert {name: booking[name] for name in ("user", "model", "start", "end", "gpus", "state", "note", "version")} == {
        "user": MEMBER,
        "model": A6000,
        "start": "2026-11-17T12:00:00Z",
        "end": "2026-11-19T12:00:00Z",
        "gpus": 2,
        "state": "planned",
        "note": "🙂 <b>",
        "version": 1,
    }
    assert answer.headers["location"] == f"{BOOKINGS}/{booking['id']}"
    again = await ada.get(answer.headers["location"])
    assert (again.status, again.json, again.headers["etag"]) == (200, booking, '"1"')
    assert (await ada.get(answer.headers["location"], if_none_match='"1"')).status == 304


async def test_without_a_start_a_booking_begins_when_it_is_accepted(opened: Opened, ada: Caller) -> None:
    opened.clock.now = NOW + timedelta(milliseconds=700)

    booking = await made(ada, days=1.5)

    assert (booking["start"], booking["end"], booking["state"]) == (at(0), at(1.5), "active")


async def test_a_booking_from_now_is_allowed_however_long_it_takes_to_look_at_it(
    opened: Opened, ada: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick(clock: Clock) -> datetime:
        clock.now += timedelta(seconds=1)
        return clock.now

    monkeypatch.setattr(Clock, "__call__", tick)

    seen = await ada.post(f"{BOOKINGS}/preview", {"model": "a6000", "days": 1})
    booked = await ada.book(days=1)

    assert (seen.status, booked.status) == (200, 201), (seen.json, booked.json)


async def test_all_mistakes_are_listed_with_a_possible_start_and_a_command_that_works(ada: Caller, bob: Caller) -> None:
    await made(bob, start=at(0), days=3, gpus=2)

    answer = await ada.book(start=at(-0.25), days=0.5)

    assert answer.status == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.codes == ["min-duration", "not-in-the-past", "capacity"]
    problem = answer.json
    assert (problem["code"], problem["title"], problem["earliest_start"]) == (
        "rules-broken",
        "3 rules are broken",
        at(3),
    )
    assert problem["hint"] == "carrel book nvidia-rtx-a6000 --days 1 --from 2026-11-19T13:00+01:00"


async def test_the_cooldown_starts_when_an_active_booking_is_cancelled(opened: Opened, ada: Caller) -> None:
    booking = await made(ada, days=5)
    opened.clock.now = NOW + 2 * DAY
    cancelled = await ada.post(f"{BOOKINGS}/{booking['id']}/cancel")
    assert (cancelled.json["state"], cancelled.json["ends"]) == ("cancelled", at(2))

    refused = await ada.book(days=5)

    assert (refused.status, refused.codes) == (422, ["cooldown"])
    assert refused.json["title"] == "Cooldown not over"
    assert refused.json["earliest_start"] == at(16)
    assert (await ada.book(start=refused.json["earliest_start"], days=5)).status == 201


async def test_the_hint_has_a_date_if_the_next_start_is_midnight_in_the_lab(opened: Opened, ada: Caller) -> None:
    opened.clock.now = NOW - timedelta(hours=13)  # midnight in Stockholm
    await made(ada, days=1)
    opened.clock.now += 2 * DAY

    refused = await ada.book(days=5)

    assert refused.json["hint"] == "carrel book nvidia-rtx-a6000 --days 5 --from 2026-12-01"


async def test_a_booking_that_was_cancelled_before_it_began_does_not_count(ada: Caller) -> None:
    booking = await made(ada, start=at(5), days=5)

    await ada.post(f"{BOOKINGS}/{booking['id']}/cancel")

    assert (await ada.book(days=5)).status == 201


@pytest.mark.parametrize(
    ("seconds", "starts_in", "is_used", "codes"),
    [
        pytest.param(0, 0, False, [], id="in the same second, and no pod uses it"),
        pytest.param(9, 0, False, [], id="within ten seconds, and no pod uses it"),
        pytest.param(0, 0, True, ["cooldown"], id="in the same second, and a pod uses it"),
        pytest.param(10, 0, False, ["cooldown"], id="after ten seconds"),
        pytest.param(7, 5, False, [], id="within ten seconds, of a booking that has begun meanwhile"),
        pytest.param(60, 60, False, ["cooldown"], id="at the start of a booking that was made ahead"),
    ],
)
async def test_a_booking_that_has_begun_counts_unless_it_is_taken_back_at_once(
    opened: Opened, seconds: int, starts_in: int, is_used: bool, codes: list[str]
) -> None:
    ada = await opened.caller(MEMBER)
    booking = await made(ada, start=at(starts_in / 86400), days=5)
    opened.inventory.used = frozenset({booking["id"]} if is_used else ())
    opened.clock.now = NOW + timedelta(seconds=seconds)

    shown = (await ada.get(f"{BOOKINGS}/{booking['id']}")).json["consequence"]
    cancelled = await ada.post(f"{BOOKINGS}/{booking['id']}/cancel")

    assert cancelled.json["state"] == "cancelled"
    answer = await ada.book(days=5)
    assert (answer.codes if answer.status == 422 else []) == codes
    assert ("no cooldown follows: nothing has used the booking yet" in shown) is not bool(codes)


async def test_cancelling_again_changes_nothing_and_an_ended_booking_cannot_be_cancelled(
    opened: Opened, ada: Caller
) -> None:
    booking = await made(ada, days=1)
    opened.clock.now = NOW + timedelta(hours=1)
    first = await ada.post(f"{BOOKINGS}/{booking['id']}/cancel")
    opened.clock.now = NOW + timedelta(hours=2)

    assert (await ada.post(f"{BOOKINGS}/{booking['id']}/cancel")).json == first.json

    opened.clock.now = NOW + 40 * DAY
    other = await made(ada, days=1)
    opened.clock.now = NOW + 42 * DAY
    assert (await ada.post(f"{BOOKINGS}/{other['id']}/cancel")).codes == ["over"]


async def test_the_consequence_of_cancelling_is_shown_before(opened: Opened, ada: Caller) -> None:
    booking = await made(ada, start=at(1), days=5)
    assert "no cooldown follows" in booking["consequence"]

    opened.clock.now = NOW + 2 * DAY

    shown = (await ada.get(f"{BOOKINGS}/{booking['id']}")).json
    assert shown["consequence"] == (
        "Cancelling now starts the cooldown of 14 d today: the next may start Wed 02 Dec 2026 13:00 CET."
    )


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "later", "status", "codes"),
    [
        pytest.param({"end": at(9)}, 0, 200, [], id="a planned one is extended"),
        pytest.param({"end": at(3)}, 0, 200, [], id="a planned one is shortened"),
        pytest.param({"start": at(1), "end": at(4)}, 0, 200, [], id="a planned one is moved"),
        pytest.param({"gpus": 2}, 0, 200, [], id="another GPU"),
        pytest.param({"end": at(17)}, 0, 422, ["max-duration"], id="beyond the longest"),
        pytest.param({"end": at(2.5)}, 0, 422, ["min-duration"], id="below the shortest"),
        pytest.param({"start": at(-1)}, 0, 422, ["not-in-the-past"], id="into the past"),
        pytest.param({"gpus": 3}, 0, 422, ["capacity"], id="more GPUs than there are"),
        pytest.param({"end": at(9)}, 3, 200, [], id="an active one is extended"),
        pytest.param({"end": at(4)}, 3, 200, [], id="an active one is shortened"),
        pytest.param({"end": at(3)}, 3.5, 422, ["not-in-the-past"], id="an active one cannot end in the past"),
        pytest.param({"start": at(4)}, 3, 422, ["begun"], id="an active one keeps its start"),
        pytest.param({"end": at(9)}, 8, 422, ["over"], id="one that is over cannot be changed"),
        pytest.param({"start": at(5), "end": at(4)}, 0, 422, ["end-after-start"], id="the end before the start"),
    ],
)
async def test_changes_are_judged(
    opened: Opened, ada: Caller, change: dict[str, Any], later: float, status: int, codes: list[str]
) -> None:
    booking = await made(ada, start=at(2), days=5)
    opened.clock.now = NOW + later * DAY
    path = f"{BOOKINGS}/{booking['id']}"

    seen = await ada.post(f"{path}/preview", change)
    answer = await ada.patch(path, change)

    assert answer.status == status, answer.body
    assert seen.json["allowed"] is (status == 200)
    if status == 200:
        assert {name: answer.json[name] for name in change} == change
        assert (answer.json["version"], answer.headers["etag"]) == (2, '"2"')
    else:
        assert answer.codes == [problem["code"] for problem in seen.json["problems"]] == codes
        assert (await ada.get(path)).json["version"] == 1


async def test_a_change_may_use_the_gpus_of_its_own_booking(opened: Opened, ada: Caller) -> None:
    booking = await made(ada, start=at(2), days=5, gpus=2)

    assert (await ada.patch(f"{BOOKINGS}/{booking['id']}", {"start": at(3), "end": at(9)})).status == 200


async def test_a_booking_may_become_shorter_although_the_rules_became_stricter(opened: Opened, ada: Caller) -> None:
    booking = await made(ada, start=at(2), days=12)
    strict = with_rules(opened, BookingRules(max_duration=5 * DAY))
    caller = replace(ada, app=strict.app)

    assert (await caller.patch(f"{BOOKINGS}/{booking['id']}", {"end": at(10)})).status == 200
    assert (await caller.patch(f"{BOOKINGS}/{booking['id']}", {"end": at(11)})).codes == ["max-duration"]


async def test_a_change_may_name_the_version_that_it_is_meant_for(ada: Caller) -> None:
    booking = await made(ada, start=at(2), days=5)
    path = f"{BOOKINGS}/{booking['id']}"
    assert (await ada.patch(path, {"note": "one"}, if_match='"1"')).status == 200

    late = await ada.patch(path, {"note": "two"}, if_match='"1"')

    assert (late.status, late.json["code"]) == (412, "changed-meanwhile")
    assert (await ada.post(f"{path}/cancel", None, if_match='"1"')).status == 412
    assert (await ada.patch(path, {"note": "two"}, if_match='W/"2"')).status == 200
    assert (await ada.patch(path, {"note": "two"}, if_match="*")).json[
        "version"
    ] == 3  # nothing changed, nothing written
    assert (await ada.patch(path, {"note": "x"}, if_match="3")).json["code"] == "malformed"


# --- idempotency keys ------------------------------------------------------------------------------------------------


async def test_the_same_idempotency_key_returns_the_same_booking(on_both: Opened) -> None:
    ada = await on_both.caller(MEMBER)
    wish = {"model": "a6000", "days": 3}

    answers = await asyncio.gather(*(ada.post(BOOKINGS, wish, idempotency_key="try-1") for _ in range(10)))

    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["id"] for answer in answers}) == 1
    other = await ada.post(BOOKINGS, {**wish, "days": 4}, idempotency_key="try-1")
    assert (other.status, other.json["code"]) == (409, "idempotency-key-reused")
    bob = await on_both.caller(OTHER)
    assert (await bob.post(BOOKINGS, wish, idempotency_key="try-1")).json["user"] == OTHER


# --- permissions -----------------------------------------------------------------------------------------------------


async def test_acting_for_others_needs_a_role_and_a_reason_which_that_person_is_shown(
    ada: Caller, bob: Caller, eva: Caller
) -> None:
    for_ada = {"user": "Ada@Lab.org", "start": at(1), "days": 2}
    assert (await bob.book(**for_ada)).status == 403
    assert (await eva.book(**for_ada)).json["detail"] == (
        "To act for another person, give a reason: that person is shown it."
    )

    booking = await made(eva, **for_ada, reason="she asked me to")

    path = f"{BOOKINGS}/{booking['id']}"
    assert (booking["user"], booking["created_by"]) == (MEMBER, ADMIN)
    assert (await ada.get(path)).json["reason"] == "she asked me to"
    assert (await bob.post(f"{path}/cancel")).status == 403
    assert (await eva.post(f"{path}/cancel", {"reason": "the GPU is broken"})).json["reason"] == "the GPU is broken"
    log = (await ada.get("/api/v1/audit")).json["items"]
    assert [(entry["actor"], entry["action"], entry["why"]) for entry in log] == [
        (ADMIN, "cancelled", "the GPU is broken"),
        (ADMIN, "booked", "she asked me to"),
    ]


async def test_others_see_who_has_what_but_not_the_notes(ada: Caller, bob: Caller, eva: Caller) -> None:
    booking = await made(ada, start=at(1), days=2, note="secret plan", namespace="lab-x")
    path = f"{BOOKINGS}/{booking['id']}"

    assert (await bob.get(path)).json["note"] is None
    assert (await eva.get(path)).json["note"] == "secret plan"
    for words, found in {"secret": 0, "ada@": 1}.items():
        assert len((await bob.get(f"{BOOKINGS}?q={words}")).json["items"]) == found
    assert len((await ada.get(f"{BOOKINGS}?q=SECRET")).json["items"]) == 1


async def test_a_token_for_reading_cannot_book(opened: Opened) -> None:
    reader = await opened.caller(MEMBER, frozenset({Scope.READ}))

    assert (await reader.get("/api/v1/models")).status == 200
    assert (await reader.book(days=1)).status == 403
    assert (await reader.post("/api/v1/feed")).status == 403


async def test_a_caller_without_credentials_is_refused(opened: Opened) -> None:
    for path in (BOOKINGS, "/api/v1/models", "/api/v1/audit", "/api/v1/usage"):
        answer = await opened.nobody.get(path)
        assert (answer.status, answer.json["code"]) == (401, "not-signed-in")


# --- queries ---------------------------------------------------------------------------------------------------------


async def test_pages_follow_each_other_without_gaps(opened: Opened, eva: Caller) -> None:
    opened.inventory.gpus[A6000] = 10
    for number in range(7):
        await made(eva, user=f"p{number}@lab.org", reason="test", start=at(1 + number % 2), days=2)

    seen, cursor = [], ""
    while True:
        page = (await eva.get(f"{BOOKINGS}?limit=3&cursor={cursor}")).json
        seen += [(item["start"], item["id"]) for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert len(seen) == 7
    assert seen == sorted(set(seen))
    newest = (await eva.get(f"{BOOKINGS}?limit=2&newest_first=true")).json["items"]
    assert [(item["start"], item["id"]) for item in newest] == seen[:-3:-1]


async def test_bookings_are_found_by_person_state_and_model(opened: Opened, ada: Caller, bob: Caller) -> None:
    opened.inventory.gpus[A100] = 1
    await made(ada, days=2)
    await made(bob, model="a100", start=at(2), days=2)

    async def found(query: str) -> list[str]:
        return [item["user"] for item in (await ada.get(f"{BOOKINGS}?{query}")).json["items"]]

    assert await found("user=me") == [MEMBER]
    assert await found("state=planned&state=ended") == [OTHER]
    assert await found("model=a100") == [OTHER]
    assert await found(f"end={at(1)}") == [MEMBER]
    assert await found("model=h100") == []


async def test_unheld_gpus_are_those_that_no_pod_holds_booked_or_not(opened: Opened, ada: Caller) -> None:
    assert [m["unheld_now"] for m in (await ada.get("/api/v1/models")).json["items"]] == [None]  # there is no cluster

    ledger = Ledger([a_node("n1", gpus=3, model=A6000)], [held("train", "n1", 0, 1000)])
    opened.inventory.gpus, opened.inventory.unheld_gpus = {A6000: 3}, unheld_gpus(ledger)

    [told] = (await ada.get("/api/v1/models")).json["items"]
    assert (told["free_now"], told["unheld_now"]) == (3, 2)
    ledger.forget(PodUid("uid-train"))
    assert unheld_gpus(ledger) == {A6000: 3}


async def test_free_gpus_per_day_and_the_next_free_start(opened: Opened, ada: Caller, bob: Caller) -> None:
    await made(bob, days=3, gpus=2)

    models = (await ada.get("/api/v1/models")).json
    days = (await ada.get("/api/v1/availability?start=2026-11-18&days=4&model=a6000")).json["items"][0]["days"]
    slot = (await ada.get("/api/v1/next-free?model=a6000&days=2&gpus=2")).json

    assert models["zone"] == "Europe/Stockholm"
    assert [(m["model"], m["gpus"], m["free_now"], m["next_free"]) for m in models["items"]] == [(A6000, 2, 0, at(3))]
    assert [(day["day"], day["free"]) for day in days] == [
        ("2026-11-18", 0), ("2026-11-19", 0), ("2026-11-20", 2), ("2026-11-21", 2),
    ]  # fmt: skip
    assert slot == {"model": A6000, "earliest_start": at(3)}
    assert (await ada.get("/api/v1/next-free?model=a6000&gpus=3")).json["earliest_start"] is None
    assert (await bob.get("/api/v1/next-free?model=a6000")).json["earliest_start"] == at(17)
    assert (await ada.get("/api/v1/availability?model=h100")).status == 404


async def test_a_preview_shows_what_would_happen_and_changes_nothing(ada: Caller, bob: Caller) -> None:
    await made(bob, days=3, gpus=2)

    seen = (await ada.post(f"{BOOKINGS}/preview", {"model": "a6000", "days": 2})).json
    fine = (await ada.post(f"{BOOKINGS}/preview", {"model": "a6000", "start": at(5), "days": 2})).json

    assert (seen["allowed"], [p["code"] for p in seen["problems"]], seen["earliest_start"]) == (
        False,
        ["capacity"],
        at(3),
    )
    assert (fine["allowed"], fine["problems"], fine["earliest_start"]) == (True, [], at(3))
    assert len((await ada.get(BOOKINGS)).json["items"]) == 1


# --- GPUs that are lost ----------------------------------------------------------------------------------------------


async def test_lost_gpus_leave_bookings_overbooked_and_new_ones_are_refused(
    opened: Opened, ada: Caller, bob: Caller
) -> None:
    booking = await made(bob, days=3, gpus=2)

    opened.inventory.gpus[A6000] = 1

    model = (await ada.get("/api/v1/availability?days=2")).json["items"][0]
    assert (model["gpus"], model["free_now"], model["overbooked"]) == (1, 0, 1)
    assert (await ada.book(days=1)).codes == ["capacity"]
    assert (await bob.get(f"{BOOKINGS}/{booking['id']}")).json["state"] == "active"
    opened.inventory.gpus.clear()
    assert (await ada.get("/api/v1/models")).json["items"][0]["overbooked"] == 2
    assert (await ada.book(days=1)).codes == ["unknown-model"]


async def test_nothing_is_booked_before_the_cluster_was_read(opened: Opened, ada: Caller) -> None:
    opened.inventory.is_known = False

    answer = await ada.book(days=1)

    assert (answer.status, answer.json["code"]) == (503, "inventory-unknown")
    assert (await opened.nobody.get("/readyz")).status == 503


async def test_a_planned_booking_gets_another_model_judged_like_a_new_one_without_itself(
    opened: Opened, ada: Caller, bob: Caller
) -> None:
    opened.inventory.gpus[A100] = 1
    mine = await made(ada, gpus=2, start=at(2), end=at(4))
    path = f"/api/v1/bookings/{mine['id']}"

    refused = await ada.patch(path, {"model": "a100"})
    assert refused.codes == ["capacity"]
    assert (await ada.patch(path, {"model": "h100"})).codes == ["unknown-model"]
    changed = await ada.patch(path, {"model": "a100", "gpus": 1, "start": at(3), "end": at(5)})
    assert (changed.status, changed.json["model"], changed.json["gpus"]) == (200, A100, 1)
    assert (await bob.book(gpus=2, start=at(2), end=at(4))).status == 201, "its GPUs are free again"
    assert (await ada.patch(path, {"model": A6000})).codes == ["capacity"], "bob has them now"

    opened.clock.now += 3.5 * DAY
    assert (await ada.patch(path, {"model": A6000})).codes[0] == "begun"
    assert (await ada.patch(path, {"model": A100, "note": "the same"})).status == 200


async def test_maintenance_takes_gpus_out_of_the_calendar(ada: Caller, eva: Caller) -> None:
    window = {"model": "a6000", "start": at(1), "end": at(2), "gpus": 2, "why": "new fans"}
    assert (await ada.post("/api/v1/maintenance", window)).status == 403
    kept = await eva.post("/api/v1/maintenance", window)
    assert (kept.status, kept.json["model"]) == (201, A6000)

    assert (await ada.book(days=3)).codes == ["capacity"]
    assert [each["why"] for each in (await ada.get("/api/v1/maintenance")).json["items"]] == ["new fans"]
    assert (await eva.delete(f"/api/v1/maintenance/{kept.json['id']}")).status == 204
    assert (await eva.delete(f"/api/v1/maintenance/{kept.json['id']}")).status == 404
    assert (await ada.book(days=3)).status == 201
    wrong = await eva.post("/api/v1/maintenance", {**window, "model": "h100", "end": at(0)})
    assert (wrong.status, wrong.codes) == (422, ["unknown-model", "end-after-start"])


async def test_shares_of_a_gpu_can_be_booked_if_the_lab_allows_them(opened: Opened, ada: Caller) -> None:
    assert (await ada.book(days=1, share=True)).codes == ["shares"]
    shared = with_rules(opened, BookingRules(shares_per_gpu=2))
    shared.inventory.gpus[A6000] = 1

    answers = [await (await shared.caller(f"p{n}@lab.org")).book(days=1, share=True) for n in range(3)]

    assert [answer.status for answer in answers] == [201, 201, 422]
    assert answers[2].codes == ["capacity"]
    assert answers[2].json["hint"].startswith("carrel book nvidia-rtx-a6000 --days 1 --share --from ")
    day = (await replace(ada, app=shared.app).get("/api/v1/availability?days=3")).json["items"][0]["days"]
    assert [(each["free"], each["shares"]) for each in day] == [(0, 0), (0, 0), (1, 2)]
