"""People whose bookings lack a GPU are told once, after a while, and again when it is over."""

from datetime import timedelta

import pytest

from carrel.bookings.notifications.messages import text
from carrel.bookings.notifications.notifier import notification_of
from carrel.bookings.notifications.watches import LASTS, OverbookedWatch
from carrel.bookings.records import LogEntry
from tests.kit.booking import MEMBER, OTHER, Opened, at, made
from tests.kit.gpus import A6000

CORDONED = ("dgx-1 is cordoned (kubectl uncordon dgx-1)",)
MINUTE = timedelta(minutes=1)


def a_watch(opened: Opened) -> OverbookedWatch:
    return OverbookedWatch(opened.service.queries, opened.service.outbox)


async def told(opened: Opened) -> list[tuple[str, str]]:
    """Who was told what, in order."""
    return [(entry.subject, entry.action) for entry in await entries(opened)]


async def entries(opened: Opened) -> list[LogEntry]:
    async with opened.service.queries.store.reading() as reading:
        found = await reading.log()
    return [each for each in reversed(found) if each.action in ("overbooked", "enough-gpus-again")]


async def lasting(opened: Opened, time: timedelta, *watches: OverbookedWatch) -> None:
    """All replicas look every minute for so long."""
    for _ in range(time // MINUTE + 1):
        for watch in watches:
            await watch.round()
        opened.clock.now += MINUTE


def cordon(opened: Opened, left: int = 0) -> None:
    opened.inventory.gpus[A6000], opened.inventory.out_of_use = left, CORDONED * (2 - left)


def uncordon(opened: Opened) -> None:
    opened.inventory.gpus[A6000], opened.inventory.out_of_use = 2, ()


async def test_two_replicas_tell_once_that_gpus_are_missing_and_once_that_it_is_over(opened: Opened) -> None:
    await made(await opened.caller(MEMBER), days=3)
    replicas = a_watch(opened), a_watch(opened)
    cordon(opened)

    await lasting(opened, timedelta(hours=2), *replicas)
    assert await told(opened) == [(MEMBER, "overbooked")]
    uncordon(opened)
    await lasting(opened, timedelta(hours=2), *replicas)

    assert await told(opened) == [(MEMBER, "overbooked"), (MEMBER, "enough-gpus-again")]
    cordon(opened)
    await lasting(opened, timedelta(hours=2), *replicas, a_watch(opened))
    assert len(await told(opened)) == 3, "the next time it is told again"


async def test_a_reboot_is_no_message_and_neither_are_many(opened: Opened) -> None:
    await made(await opened.caller(MEMBER), days=3)
    watch = a_watch(opened)
    for _ in range(4):
        cordon(opened)
        await lasting(opened, LASTS - 2 * MINUTE, watch)
        uncordon(opened)
        await lasting(opened, 2 * MINUTE, watch)

    assert await told(opened) == []


async def test_that_it_is_over_is_told_by_a_replica_that_has_just_started_and_not_for_a_moment(opened: Opened) -> None:
    await made(await opened.caller(MEMBER), days=3)
    cordon(opened)
    await lasting(opened, LASTS, a_watch(opened))
    uncordon(opened)
    other = a_watch(opened)
    await lasting(opened, LASTS - 2 * MINUTE, other)
    assert await told(opened) == [(MEMBER, "overbooked")]

    await lasting(opened, 2 * MINUTE, other)

    assert await told(opened) == [(MEMBER, "overbooked"), (MEMBER, "enough-gpus-again")]


async def test_a_replica_that_does_not_hear_the_api_server_tells_nobody(opened: Opened) -> None:
    """To it all agents seem silent, while the other replica sees that they are not: they would take turns."""
    await made(await opened.caller(MEMBER), days=3)
    is_heard = False
    watch = OverbookedWatch(opened.service.queries, opened.service.outbox, lambda: is_heard)
    cordon(opened)
    await lasting(opened, timedelta(hours=2), watch)
    assert await told(opened) == []

    is_heard = True
    await lasting(opened, LASTS - 2 * MINUTE, watch)
    assert await told(opened) == [], "the agents may have reported meanwhile"
    await lasting(opened, 2 * MINUTE, watch)

    assert await told(opened) == [(MEMBER, "overbooked")]


async def test_only_people_are_told_whose_booking_lacks_a_gpu_today(opened: Opened) -> None:
    ada, bob = await opened.caller(MEMBER), await opened.caller(OTHER)
    await made(ada, days=1)
    await made(bob, start=at(3), days=3)
    watch = a_watch(opened)
    cordon(opened, left=1)
    await lasting(opened, timedelta(hours=1), watch)
    assert await told(opened) == [], "one GPU is enough for today's booking"

    cordon(opened)
    await lasting(opened, LASTS, watch)
    assert await told(opened) == [(MEMBER, "overbooked")], "bob's booking starts in three days"

    opened.clock.now += timedelta(days=2, hours=2)
    await lasting(opened, LASTS, watch)
    assert (await told(opened))[1:] == [(OTHER, "overbooked")], "nobody hears of a booking that has ended"


async def test_announced_maintenance_is_no_message_even_if_the_node_is_cordoned_for_it(opened: Opened) -> None:
    admin = await opened.caller("eva@lab.org")
    await made(await opened.caller(MEMBER), days=3)
    window = {"model": A6000, "start": at(0.01), "end": at(1), "gpus": 1, "why": "new fans"}
    assert (await admin.post("/api/v1/maintenance", window)).status == 201
    cordon(opened, left=1)

    await lasting(opened, timedelta(hours=2), a_watch(opened))

    assert await told(opened) == []


async def test_nobody_is_told_before_the_cluster_was_read(opened: Opened) -> None:
    await made(await opened.caller(MEMBER), days=3)
    cordon(opened)
    opened.inventory.is_known = False

    await lasting(opened, timedelta(hours=1), a_watch(opened))

    assert await told(opened) == []


async def test_a_cancelled_booking_is_forgotten_without_a_message(opened: Opened) -> None:
    ada, watch = await opened.caller(MEMBER), a_watch(opened)
    booking = await made(ada, days=3)
    cordon(opened)
    await lasting(opened, LASTS, watch)
    assert (await ada.post(f"/api/v1/bookings/{booking['id']}/cancel", {"reason": "no use"})).status == 200

    await lasting(opened, LASTS, watch)

    assert await told(opened) == [(MEMBER, "overbooked")]
    assert await opened.service.outbox.marks("overbooked-") == frozenset()


async def test_the_message_says_why_and_what_happens_to_pods(opened: Opened) -> None:
    await made(await opened.caller(MEMBER), days=3, gpus=2)
    watch = a_watch(opened)
    cordon(opened)
    await lasting(opened, LASTS, watch)
    uncordon(opened)
    await lasting(opened, LASTS, watch)

    texts = [
        text(found, opened.service.queries.zone) for each in await entries(opened) if (found := notification_of(each))
    ]

    assert texts == [
        f"""Your booking of {A6000} may lack a GPU: more are booked than can be used now.

Model: {A6000} (2)
From:  Mon 16 Nov 2026 13:00 CET
Until: Thu 19 Nov 2026 13:00 CET (3 d)
Why:   2 of 2 are out of use: dgx-1 is cordoned (kubectl uncordon dgx-1)

Pods that run keep their GPUs. New pods of this booking stay booked, and may have to wait. You are told when it is over.
""",
        f"""Your booking of {A6000}: all GPUs that are booked can be used again.

Model: {A6000} (2)
From:  Mon 16 Nov 2026 13:00 CET
Until: Thu 19 Nov 2026 13:00 CET (3 d)

To look at it:  carrel show
""",
    ]


@pytest.mark.parametrize("left", [0, 1])
async def test_a_refused_booking_says_which_gpus_are_out_of_use(opened: Opened, left: int) -> None:
    cordon(opened, left)

    answer = await (await opened.caller(MEMBER)).book(days=1, gpus=2)

    assert answer.codes == ["capacity"]
    words = f"{2 - left} of 2 {'are' if left == 0 else 'is'} out of use: dgx-1 is cordoned (kubectl uncordon dgx-1)."
    assert words in answer.json["problems"][0]["message"]
