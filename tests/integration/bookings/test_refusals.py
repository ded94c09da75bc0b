"""A refusal says who has the GPUs, or which maintenance, from when to when, when it would work, and how."""

from datetime import timedelta

from tests.kit.booking import MEMBER, OTHER, Caller, Opened, at, made
from tests.kit.gpus import A6000

BOOKINGS = "/api/v1/bookings"


async def close(eva: Caller, start: float, end: float, gpus: int = 2, why: str = "new fans") -> None:
    window = {"model": "a6000", "start": at(start), "end": at(end), "gpus": gpus, "why": why}
    assert (await eva.post("/api/v1/maintenance", window)).status == 201


async def test_a_booking_without_room_is_told_who_has_the_gpus_and_when_there_is_room(
    opened: Opened, ada: Caller, bob: Caller, eva: Caller
) -> None:
    await opened.manage("vision", "cleo@lab.org")
    await made(await opened.caller("cleo@lab.org"), days=5, start=at(1), group="vision")
    await made(bob, days=3)
    await close(eva, 4, 4.5, gpus=1)

    refused = await ada.book(days=2, gpus=1, start=at(1))

    assert refused.codes == ["capacity"]
    assert refused.json["detail"] == (
        f"0 of 2 GPUs of {A6000} are free from Tue 17 Nov 2026 13:00 CET to Thu 19 Nov 2026 13:00 CET;"
        f" 1 is asked for. Taken: 1 GPU by {OTHER} from Mon 16 Nov 2026 13:00 CET to Thu 19 Nov 2026 13:00 CET;"
        " 1 GPU by the group vision from Tue 17 Nov 2026 13:00 CET to Sun 22 Nov 2026 13:00 CET."
        " There is room for 2 d from Sat 21 Nov 2026 01:00 CET."
    )
    assert refused.json["earliest_start"] == at(4.5)
    assert refused.json["hint"] == f"carrel book {A6000.lower()} --days 2 --from 2026-11-21T01:00+01:00"
    assert (await ada.book(days=2, start=at(4.5))).status == 201


async def test_maintenance_is_named_with_what_it_is_for_and_how_much_time_there_is_before(
    ada: Caller, eva: Caller
) -> None:
    await close(eva, 3, 3.5)

    refused = await ada.book(days=5)

    assert refused.json["detail"] == (
        f"0 of 2 GPUs of {A6000} are free from Thu 19 Nov 2026 13:00 CET to Fri 20 Nov 2026 01:00 CET;"
        " 1 is asked for. Taken: 2 GPUs by maintenance (new fans) from Thu 19 Nov 2026 13:00 CET to Fri 20 Nov 2026"
        " 01:00 CET. There is room until Thu 19 Nov 2026 13:00 CET. There is room for 5 d from Fri 20 Nov 2026 01:00"
        " CET."
    )
    assert (await ada.book(end=at(3))).status == 201


async def test_more_gpus_than_there_are_is_never_possible(ada: Caller) -> None:
    refused = await ada.book(days=2, gpus=3)

    assert refused.json["detail"] == f"There are 2 GPUs of {A6000} to book; 3 are asked for."
    assert refused.json["earliest_start"] is None


async def test_of_many_bookings_a_few_are_named(opened: Opened, ada: Caller) -> None:
    opened.inventory.gpus[A6000] = 6
    for number in range(6):
        await made(await opened.caller(f"p{number}@lab.org"), days=2 + number)

    said = (await ada.book(days=1)).json["detail"]

    assert [f"p{number}@" in said for number in range(6)] == [True] * 4 + [False] * 2
    assert "; 2 more on the timeline." in said


# --- changes ---------------------------------------------------------------------------------------------------------


async def test_an_extension_needs_room_only_in_the_time_that_it_adds(opened: Opened, ada: Caller, eva: Caller) -> None:
    booking = await made(ada, days=3)
    await close(eva, 1, 2)  # during the booking, which stays and is overbooked
    path = f"{BOOKINGS}/{booking['id']}"

    assert (await ada.patch(path, {"end": at(5)})).status == 200
    opened.inventory.gpus[A6000] = 0  # all break
    assert (await ada.patch(path, {"end": at(4)})).status == 200
    assert (await ada.patch(path, {"end": at(5)})).codes == ["capacity"]


async def test_an_extension_without_room_is_told_how_far_it_can_go(ada: Caller, bob: Caller, eva: Caller) -> None:
    booking = await made(ada, days=3)
    await close(eva, 5, 5.5)
    path = f"{BOOKINGS}/{booking['id']}"

    refused = await ada.patch(path, {"end": at(6)})

    assert refused.codes == ["capacity"]
    assert "2 GPUs by maintenance (new fans) from Sat 21 Nov 2026 13:00 CET" in refused.json["detail"]
    assert MEMBER not in refused.json["detail"], "it does not wait for itself"
    assert refused.json["detail"].endswith(" There is room until Sat 21 Nov 2026 13:00 CET.")
    assert refused.json["hint"] == f"carrel extend {booking['id'][:8]} --until 2026-11-21T13:00+01:00"
    assert (await ada.patch(path, {"end": at(5)})).status == 200
    again = await ada.patch(path, {"end": at(6)})
    assert "There is room until" not in again.json["detail"]
    assert again.json["hint"] == f"carrel show {booking['id'][:8]}"


async def test_an_extension_beyond_the_longest_booking_is_told_the_latest_end(ada: Caller) -> None:
    booking = await made(ada, days=3)

    refused = await ada.patch(f"{BOOKINGS}/{booking['id']}", {"end": at(20)})

    assert refused.codes == ["max-duration"]
    assert refused.json["detail"].endswith(" It ends Mon 30 Nov 2026 13:00 CET at the latest.")
    assert refused.json["hint"] == f"carrel extend {booking['id'][:8]} --until 2026-11-30T13:00+01:00"


async def test_a_booking_becomes_shorter_down_to_the_minimum_and_is_cancelled_below_it(
    opened: Opened, ada: Caller
) -> None:
    booking = await made(ada, days=3)
    path = f"{BOOKINGS}/{booking['id']}"
    opened.clock.now += timedelta(hours=2)

    assert (await ada.patch(path, {"end": at(1)})).status == 200
    refused = await ada.patch(path, {"end": at(0.5)})

    assert refused.json["detail"] == "A booking lasts at least 1 d; this is 12 h. To end it earlier, cancel it."
    assert refused.json["hint"] == f"carrel cancel {booking['id'][:8]}"
    assert (await ada.post(f"{path}/cancel")).json["ends"] == at(2 / 24)


async def test_a_booking_that_lost_its_model_may_become_shorter(opened: Opened, ada: Caller) -> None:
    booking = await made(ada, days=3)
    del opened.inventory.gpus[A6000]

    assert (await ada.patch(f"{BOOKINGS}/{booking['id']}", {"end": at(2)})).status == 200
    assert (await ada.patch(f"{BOOKINGS}/{booking['id']}", {"end": at(4)})).codes == ["unknown-model"]


# --- what can be booked now ------------------------------------------------------------------------------------------


async def test_what_can_be_booked_now_can_be_booked_now(ada: Caller, bob: Caller, eva: Caller) -> None:
    """With maintenance tomorrow and a shortest booking of a day, nothing can."""
    await made(bob, days=1)
    await close(eva, 0.8, 1.2)

    [told] = (await ada.get("/api/v1/models")).json["items"]

    assert (told["bookable_now"], told["free_now"], told["next_free"]) == (0, 1, at(1.2))
    assert (told["free_until"], told["free_until_why"]) == (at(0.8), "maintenance")
    assert (await ada.book(days=1)).codes == ["capacity"]
    assert (await ada.book(days=1, start=at(1.2))).status == 201
