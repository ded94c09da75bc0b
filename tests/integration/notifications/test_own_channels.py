"""A person's own channels: stand-ins for Slack, Teams, Matrix and a webhook are really called."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import aiohttp
import pytest

from carrel.bookings.notifications.channels import POSTS, Channel, Channels, MatrixChannel, OwnChannel, Undelivered
from carrel.bookings.notifications.choices import MessageChoices
from carrel.bookings.notifications.destinations import checked_session
from carrel.bookings.notifications.mail import MailChannel, mail_server
from carrel.bookings.notifications.messages import Message, trial
from carrel.bookings.notifications.notifier import Notifier
from carrel.bookings.records import LogEntry
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from tests.kit.booking import ADMIN, MEMBER, NOW, Opened, at, opened_on
from tests.kit.eventually import eventually
from tests.kit.sinks import MailSink, PostSink

ROOM = "!private:lab.example"
SEND, JOIN = f"/_matrix/client/v3/rooms/{ROOM}/send/m.room.message", f"/_matrix/client/v3/rooms/{ROOM}/join"
SEND, JOIN = (path.replace("!", "%21").replace(":", "%3A") for path in (SEND, JOIN))


@dataclass
class Chats:
    opened: Opened
    people: SqlPeople
    mail: MailSink
    sink: PostSink
    channels: Channels

    async def chosen(self, *, by_mail: bool = False, muted: frozenset[str] = frozenset(), **addresses: str) -> None:
        await self.people.choose_messages(MEMBER, MessageChoices(by_mail, addresses, muted))

    async def told(self) -> list[str]:
        """Where messages arrived."""
        self.sink.calls.clear()
        opened = self.opened
        notifier = Notifier(opened.service.outbox, opened.service.queries.store, self.channels, opened.clock)
        while await notifier.round():
            pass
        return self.sink.calls

    async def book(self) -> None:
        assert (await (await self.opened.caller(MEMBER)).book(days=3)).status == 201


@pytest.fixture
async def chats(database: Database) -> AsyncIterator[Chats]:
    async with AsyncExitStack() as stack:
        mail = await stack.enter_async_context(MailSink().listening())
        sink = await stack.enter_async_context(PostSink().listening())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        hosts = (sink.host,)
        own = await stack.enter_async_context(checked_session(lambda: hosts))
        home = sink.url.removesuffix("/hook")
        of: Mapping[str, Channel] = {
            "mail": MailChannel(mail_server(mail.url), "gpus@lab.org"),
            **{name: OwnChannel(request, own, hosts) for name, request in POSTS.items()},
            "matrix": MatrixChannel(home, "token", http),
        }
        opened = opened_on(database)
        channels = Channels(opened.service.queries.zone, "https://gpus.lab.org")
        channels.take(of, hosts)
        yield Chats(opened, SqlPeople(database), mail, sink, channels)


async def test_a_person_is_told_by_every_channel_that_they_chose_in_the_same_words(chats: Chats) -> None:
    hook = chats.sink.url
    await chats.chosen(
        by_mail=True, slack=f"{hook}/slack", teams=f"{hook}/teams", webhook=f"{hook}/webhook", matrix=ROOM
    )
    await chats.book()

    called = await chats.told()

    assert sorted(called) == [
        "POST /hook/slack",
        "POST /hook/teams",
        "POST /hook/webhook",
        f"PUT {SEND}/log-1-20261116T120000Z",
    ]
    said = dict(zip(called, [json.loads(body) for _, body in chats.sink.posts], strict=True))
    text = said["POST /hook/slack"]["text"]
    assert text.startswith("Booked: NVIDIA-RTX-A6000 until Thu 19 Nov 2026 13:00 CET.")
    assert said["POST /hook/webhook"]["text"] == said[f"PUT {SEND}/log-1-20261116T120000Z"]["body"] == text
    blocks = said["POST /hook/teams"]["attachments"][0]["content"]["body"]
    lines = [block["inlines"][0]["text"].rstrip() for block in blocks]
    assert "\n".join(lines) == text.rstrip()
    mail = chats.mail.messages[0].get_body()
    assert mail is not None and mail.get_content().splitlines() == text.splitlines()


async def test_what_a_person_switched_off_is_not_told(chats: Chats) -> None:
    await chats.chosen(by_mail=True, muted=frozenset({"bookings"}), slack=chats.sink.url)
    await chats.book()
    assert await chats.told() == [] and chats.mail.messages == []

    chats.opened.clock.now += timedelta(hours=48)
    assert await chats.told() == ["POST /hook"], "other occasions are told"


async def test_a_chat_that_is_down_gets_it_later_and_blocks_no_other(chats: Chats) -> None:
    await chats.chosen(slack=f"{chats.sink.url}/slack", webhook=f"{chats.sink.url}/own")
    chats.sink.answers["/hook/slack"] = [503]
    await chats.book()
    assert sorted(await chats.told()) == ["POST /hook/own", "POST /hook/slack"]
    (failure,) = await chats.opened.service.outbox.failures(NOW, 5)
    assert (failure.person, failure.channel, failure.why) == (MEMBER, "slack", "answered 503")

    chats.opened.clock.now += timedelta(seconds=31)
    assert await chats.told() == ["POST /hook/slack"]
    assert await chats.opened.service.outbox.failures(NOW, 5) == []


async def test_an_address_that_is_gone_or_not_allowed_any_more_is_given_up(chats: Chats) -> None:
    await chats.chosen(slack=f"{chats.sink.url}/slack", webhook="https://discord.com/secret")
    chats.sink.answers["/hook/slack"] = [410]
    await chats.book()
    assert await chats.told() == ["POST /hook/slack"]

    failures = await chats.opened.service.outbox.failures(NOW, 5)
    assert all(each.again is None for each in failures) and len(failures) == 2
    assert "secret" not in str(failures)


async def test_a_channel_that_a_person_leaves_gets_nothing_of_what_was_under_way(chats: Chats) -> None:
    await chats.chosen(slack=chats.sink.url)
    chats.sink.answers["/hook"] = [503]
    await chats.book()
    await chats.told()
    await chats.chosen(by_mail=True)
    chats.opened.clock.now += timedelta(hours=1)

    assert await chats.told() == []


async def test_a_chat_that_does_not_answer_delays_no_other(chats: Chats) -> None:
    """Nor what happens meanwhile."""
    release = asyncio.Event()

    class Stuck(MailChannel):
        async def send(self, message: Message, address: str) -> None:
            await release.wait()

    own = chats.channels.get("webhook")
    assert own is not None
    chats.channels.take(
        {"mail": Stuck(mail_server("smtp://localhost"), "gpus@lab.org"), "webhook": own}, (chats.sink.host,)
    )
    await chats.chosen(by_mail=True, webhook=chats.sink.url)
    opened = chats.opened
    notifier = Notifier(opened.service.outbox, opened.service.queries.store, chats.channels, opened.clock)
    running = asyncio.create_task(notifier.run())
    try:
        await chats.book()
        await eventually(lambda: chats.sink.calls, "the first message")
        ada = await opened.caller(MEMBER)
        booking = (await ada.get("/api/v1/bookings")).json["items"][0]["id"]
        await ada.post(f"/api/v1/bookings/{booking}/cancel", {})
        await eventually(lambda: len(chats.sink.calls) == 2, "the second message")
    finally:
        running.cancel()
        release.set()


async def test_an_address_is_called_as_it_was_given(chats: Chats) -> None:
    await chats.chosen(teams=f"{chats.sink.url}/a%2Fb%21?sig=%2Bx%2Fy%3D")
    await chats.book()

    assert await chats.told() == ["POST /hook/a%2Fb%21?sig=%2Bx%2Fy%3D"]


async def test_a_redirect_is_not_followed(chats: Chats) -> None:
    chats.sink.status, chats.sink.headers = 307, {"location": f"{chats.sink.url}/elsewhere"}
    await chats.chosen(webhook=chats.sink.url)
    await chats.book()

    assert await chats.told() == ["POST /hook"]


async def test_the_invitation_to_a_room_is_accepted_when_it_is_needed(chats: Chats) -> None:
    await chats.chosen(matrix=ROOM)
    await chats.book()
    path = f"{SEND}/log-1-20261116T120000Z"
    chats.sink.answers[path] = [403, 200]
    chats.sink.status = 200

    assert await chats.told() == [f"PUT {path}", f"POST {JOIN}", f"PUT {path}"]
    assert [headers["authorization"] for headers, _ in chats.sink.posts] == ["Bearer token"] * 3


async def test_a_name_that_leads_into_the_network_is_not_called(chats: Chats) -> None:
    """`localhost` is no public address, and only a pattern names it."""
    port = chats.sink.host.partition(":")[2]
    hosts = (f"*.localhost:{port}",)
    async with checked_session(lambda: hosts) as http:
        channel = OwnChannel(POSTS["webhook"], http, hosts)
        message = trial(MEMBER, "test-1", NOW, chats.channels.zone)
        with pytest.raises(Undelivered):
            await channel.send(message, f"http://a.localhost:{port}/hook")
    assert chats.sink.calls == []


EVENING = NOW + timedelta(hours=10)
"""23 o'clock in the lab."""
MORNING = NOW + timedelta(hours=19)


async def cancelled_at_night(chats: Chats) -> None:
    """An admin shortens Ada's booking, and then cancels it."""
    ada, admin = await chats.opened.caller(MEMBER), await chats.opened.caller(ADMIN)
    path = f"/api/v1/bookings/{(await ada.book(days=3, start=at(2))).json['id']}"
    await chats.told()
    chats.opened.clock.now = EVENING
    shortened = await admin.patch(path, {"end": at(4), "reason": "the rack is moved"})
    cancelled = await admin.post(f"{path}/cancel", {"reason": "the rack is moved"})
    assert (shortened.status, cancelled.status) == (200, 200)


async def test_the_night_is_one_message_in_the_morning_by_each_channel(chats: Chats) -> None:
    await chats.chosen(by_mail=True, webhook=chats.sink.url)
    await cancelled_at_night(chats)
    chats.mail.messages.clear()
    assert await chats.told() == [] and chats.mail.messages == []
    chats.opened.clock.now = MORNING - timedelta(seconds=1)
    assert await chats.told() == []

    chats.opened.clock.now = MORNING
    assert await chats.told() == ["POST /hook"]
    assert await chats.told() == []
    said = json.loads(chats.sink.posts[-1][1])
    assert (said["occasion"], said["subject"]) == ("digest", "2 messages from the night")
    assert said["text"].count("the rack is moved") == 2
    (mail,) = chats.mail.messages
    assert mail["Message-ID"] == f"<{said['id']}@carrel>"
    (entry,) = mail.iter_attachments()
    assert entry.get_content().count("BEGIN:VEVENT") == entry.get_content().count("STATUS:CANCELLED") == 1


async def test_a_morning_message_that_failed_is_sent_again_whole_and_with_the_same_id(chats: Chats) -> None:
    await chats.chosen(webhook=chats.sink.url)
    await cancelled_at_night(chats)
    await chats.told()
    chats.opened.clock.now, chats.sink.answers["/hook"] = MORNING, [503]
    await chats.told()
    chats.opened.clock.now += timedelta(minutes=1)
    await chats.told()

    first, second = (json.loads(body) for _, body in chats.sink.posts[-2:])
    assert first == second and first["occasion"] == "digest"


async def test_a_quiet_night_makes_no_message_in_the_morning(chats: Chats) -> None:
    await chats.chosen(webhook=chats.sink.url)
    chats.opened.clock.now = EVENING
    await chats.told()
    chats.opened.clock.now = MORNING

    assert await chats.told() == []


async def test_that_a_gpu_is_needed_is_told_also_in_the_night(chats: Chats) -> None:
    await chats.chosen(webhook=chats.sink.url)
    chats.opened.clock.now = EVENING
    details = {"namespace": "lab", "pod": "train-0"}
    lost = LogEntry(EVENING, "the controller", "revoked", MEMBER, details=details)
    await chats.opened.service.outbox.note("revoked-uid-1", lost)

    assert await chats.told() == ["POST /hook"]
