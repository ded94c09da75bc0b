"""Buttons in messages: opening the link changes nothing, pressing it there does one thing, once."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from carrel.bookings.notifications.channels import POSTS, Channels, LabWebhook, OwnChannel
from carrel.bookings.notifications.choices import MessageChoices
from carrel.bookings.notifications.destinations import checked_session
from carrel.bookings.notifications.notifier import Notifier
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from tests.integration.pages.visitor import FORM, a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, NOW, OTHER, Answer, Opened, opened_on
from tests.kit.sinks import PostSink

EXTEND, END = "Extend by a day", "End now"


@dataclass
class Reminded:
    """Ada's booking ends in a day, and she was sent a message."""

    opened: Opened
    sink: PostSink
    channels: Channels
    booking: str = ""

    async def remind(self) -> dict[str, Any]:
        """What the message says."""
        self.sink.posts.clear()
        opened = self.opened
        notifier = Notifier(opened.service.outbox, opened.service.queries.store, self.channels, opened.clock)
        while await notifier.round():
            pass
        said = [json.loads(body) for _, body in self.sink.posts]
        return said[-1] if said else {}

    async def paths(self) -> dict[str, str]:
        return {
            each["title"]: each["url"].removeprefix("https://gpus.lab.org") for each in (await self.remind())["buttons"]
        }

    async def open(self, path: str) -> Answer:
        return await self.opened.nobody.get(path, accept="text/html")

    async def press(self, path: str, body: bytes = b"csrf=") -> Answer:
        return await self.opened.nobody.post(path, body, content_type=FORM, accept="text/html")

    async def now(self) -> dict[str, Any]:
        """The booking as it is."""
        ada = await self.opened.caller(MEMBER)
        found: dict[str, Any] = (await ada.get(f"/api/v1/bookings/{self.booking}")).json
        return found


@pytest.fixture
async def reminded(database: Database) -> AsyncIterator[Reminded]:
    async with AsyncExitStack() as stack:
        sink = await stack.enter_async_context(PostSink().listening())
        hosts = (sink.host,)
        http = await stack.enter_async_context(checked_session(lambda: hosts))
        opened = opened_on(database)
        channels = Channels(opened.service.queries.zone, "https://gpus.lab.org")
        channels.take({"webhook": OwnChannel(POSTS["webhook"], http, hosts)}, hosts)
        await SqlPeople(database).choose_messages(MEMBER, MessageChoices(False, {"webhook": sink.url}))
        made = Reminded(opened, sink, channels)
        made.booking = (await (await opened.caller(MEMBER)).book(days=3)).json["id"]
        await made.remind()
        opened.clock.now = NOW + timedelta(days=2)
        yield made


async def test_a_reminder_has_the_buttons_in_its_text(reminded: Reminded) -> None:
    said = await reminded.remind()

    assert said["occasion"] == "ends-in-24h"
    assert [each["title"] for each in said["buttons"]] == [EXTEND, END]
    assert all(f"{each['title']}:  {each['url']}\n" in said["text"] for each in said["buttons"])


async def test_opening_a_link_says_what_it_will_do_and_changes_nothing(reminded: Reminded) -> None:
    before, paths = await reminded.now(), await reminded.paths()
    for _ in range(3):
        extend, end = await reminded.open(paths[EXTEND]), await reminded.open(paths[END])

    assert "RTX A6000 ends Thu 19 Nov 2026 13:00 CET. Then it will end Fri 20 Nov 2026 13:00 CET." in text_of(extend)
    assert "RTX A6000 ends Thu 19 Nov 2026 13:00 CET. Cancelling now" in text_of(end)
    assert (extend.status, extend.headers["cache-control"]) == (200, "no-store")
    assert extend.headers["referrer-policy"] == "no-referrer"
    assert await reminded.now() == before


async def test_pressing_extends_once_without_signing_in(reminded: Reminded) -> None:
    paths = await reminded.paths()

    done = await reminded.press(paths[EXTEND])
    assert done.status == 200 and "Extended: the booking ends Fri 20 Nov 2026 13:00 CET." in text_of(done)
    assert (await reminded.now())["end"] == "2026-11-20T12:00:00Z"

    for again in (await reminded.press(paths[EXTEND]), await reminded.open(paths[EXTEND])):
        assert again.status == 410 and "was done already" in text_of(again)
    assert (await reminded.now())["end"] == "2026-11-20T12:00:00Z"
    log = (await (await reminded.opened.caller(MEMBER)).get("/api/v1/audit")).json["items"]
    assert ("changed", MEMBER, "by a button in a message") in [(e["action"], e["actor"], e["why"]) for e in log]


async def test_pressing_ends_the_booking(reminded: Reminded) -> None:
    done = await reminded.press((await reminded.paths())[END])

    assert "The booking has ended" in text_of(done)
    assert (await reminded.now())["state"] == "cancelled"


async def test_a_message_that_was_sent_twice_acts_once(reminded: Reminded) -> None:
    """Also that of another channel: the links differ, the booking is the same."""
    reminded.sink.answers["/hook"] = [503]
    first = await reminded.paths()
    reminded.opened.clock.now += timedelta(minutes=1)
    second = await reminded.paths()
    assert first.keys() == second.keys() and first != second

    assert (await reminded.press(first[EXTEND])).status == 200
    for path in (second[EXTEND], second[END], first[END]):
        refused = await reminded.press(path)
        assert refused.status == 409 and "was changed" in text_of(refused)
    assert (await reminded.now())["end"] == "2026-11-20T12:00:00Z"


async def test_of_many_presses_at_once_one_acts(reminded: Reminded) -> None:
    path = (await reminded.paths())[EXTEND]

    answers = await asyncio.gather(*(reminded.press(path) for _ in range(8)))

    assert sorted(answer.status for answer in answers)[:2] in ([200, 409], [200, 410])
    assert (await reminded.now())["end"] == "2026-11-20T12:00:00Z"


async def test_a_booking_that_was_changed_since_is_left_alone(reminded: Reminded) -> None:
    paths, ada = await reminded.paths(), await reminded.opened.caller(MEMBER)
    await ada.patch(f"/api/v1/bookings/{reminded.booking}", {"note": "mine"})

    opened = await reminded.open(paths[EXTEND])
    assert (
        "was changed since this message was sent" in text_of(opened)
        and "<form method" not in text_of(opened).split("<main")[1]
    )
    assert (await reminded.press(paths[END])).status == 409
    assert (await reminded.now())["state"] == "active"


async def test_the_rules_hold_and_say_why(reminded: Reminded) -> None:
    paths, bob = await reminded.paths(), await reminded.opened.caller(OTHER)
    answer = await bob.book(gpus=2, days=1, start="2026-11-19T12:00:00Z")
    assert answer.status == 201, answer.body

    opened, pressed = await reminded.open(paths[EXTEND]), await reminded.press(paths[EXTEND])

    assert pressed.status == 409 and 'role="alert"' in text_of(opened) and 'role="alert"' in text_of(pressed)
    assert (await reminded.now())["end"] == "2026-11-19T12:00:00Z"
    assert (await reminded.press(paths[END])).status == 200, "the other button works still"


async def test_a_link_expires_with_the_booking(reminded: Reminded) -> None:
    paths = await reminded.paths()
    reminded.opened.clock.now += timedelta(days=1)

    for answer in (await reminded.open(paths[EXTEND]), await reminded.press(paths[END])):
        assert answer.status == 410 and "This link worked until Thu 19 Nov 2026 13:00 CET" in text_of(answer)


@pytest.mark.parametrize("secret", ["x", "A" * 43, "å", "..%2f..", "x" * 3000, "a'b--"])
async def test_a_forged_link_gets_a_page_that_helps(reminded: Reminded, secret: str) -> None:
    for answer in (await reminded.open(f"/act/{secret}"), await reminded.press(f"/act/{secret}")):
        assert answer.status == 404
    assert (await reminded.now())["state"] == "active"


async def test_who_is_signed_in_as_somebody_else_cannot_press_it(reminded: Reminded) -> None:
    paths, bob = await reminded.paths(), await a_visitor(reminded.opened, OTHER)

    for answer in (await bob.get(paths[EXTEND]), await bob.send(paths[EXTEND])):
        assert answer.status == 403 and f"for {MEMBER}, and you are signed in as {OTHER}" in text_of(answer)
    ada = await a_visitor(reminded.opened, MEMBER)
    assert (await ada.send(paths[EXTEND], csrf="forged")).status == 403
    assert (await ada.send(paths[EXTEND])).status == 200


async def test_an_admins_link_does_no_more_than_a_members(reminded: Reminded) -> None:
    paths = await reminded.paths()
    assert (await reminded.press(paths[END], urlencode({"act": "end", "person": ADMIN}).encode())).status == 200
    log = (await (await reminded.opened.caller(MEMBER)).get("/api/v1/audit")).json["items"]
    assert {entry["actor"] for entry in log} == {MEMBER}


async def test_who_is_signed_out_everywhere_or_removed_has_no_links_any_more(
    reminded: Reminded, database: Database
) -> None:
    paths = await reminded.paths()
    async with SqlBookings(database).writing() as writing:
        await writing.sign_out(MEMBER, reminded.opened.clock.now)

    assert (await reminded.press(paths[END])).status == 404


async def test_a_reminder_of_an_end_that_was_moved_is_not_sent(reminded: Reminded) -> None:
    reminded.sink.answers["/hook"] = [503]
    await reminded.remind()
    ada = await reminded.opened.caller(MEMBER)
    await ada.patch(f"/api/v1/bookings/{reminded.booking}", {"end": "2026-11-20T12:00:00Z"})
    reminded.opened.clock.now += timedelta(minutes=1)

    assert (await reminded.remind())["occasion"] == "changed"


async def test_the_labs_webhook_gets_no_buttons(reminded: Reminded) -> None:
    async with checked_session(lambda: (reminded.sink.host,)) as http:
        lab = LabWebhook(reminded.sink.url, "a secret of both sides", http, reminded.opened.clock)
        reminded.channels.take({"lab": lab}, ())
        said = await reminded.remind()
    assert said["occasion"] == "ends-in-24h" and said["buttons"] == [] and not re.search("/act/", said["text"])


async def test_old_links_are_forgotten(reminded: Reminded) -> None:
    paths, buttons = await reminded.paths(), reminded.opened.service.outbox.buttons

    assert await buttons.forget(NOW + timedelta(days=3)) == 0
    assert await buttons.forget(NOW + timedelta(days=3, seconds=1)) == 2
    assert (await reminded.open(paths[END])).status == 404
