"""Notifications by a real mail server and a real HTTP server, on both databases."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, timedelta

import aiohttp
import pytest

from carrel.bookings.notifications.channels import Channel, Channels, LabWebhook, Undelivered
from carrel.bookings.notifications.mail import MailChannel, mail_server
from carrel.bookings.notifications.messages import Message, Notification, Occasion, message_of
from carrel.bookings.notifications.notifier import Notifier
from carrel.bookings.records import LogEntry
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import Planned
from carrel.parsing import Malformed
from tests.kit.booking import ADMIN, MEMBER, NOW, Caller, Opened, at, opened_on
from tests.kit.sinks import MailSink, PostSink

SECRET = "a secret of both sides"


def a_message(person: str) -> Message:
    return message_of(Notification("log-1", Occasion.BOOKED, person, NOW), UTC)


@dataclass
class Setup:
    opened: Opened
    mail: MailSink
    posts: PostSink
    channels: Mapping[str, Channel]

    def replica(self, but: frozenset[str] = frozenset()) -> Notifier:
        """Without some channels, like a replica with older settings."""
        known = {name: channel for name, channel in self.channels.items() if name not in but}
        channels = Channels(self.opened.service.queries.zone, "https://gpus.lab.org", known)
        return Notifier(self.opened.service.outbox, self.opened.service.queries.store, channels, self.opened.clock)

    async def ada(self) -> Caller:
        return await self.opened.caller(MEMBER)

    async def send_all(self) -> None:
        notifier = self.replica()
        while await notifier.round():
            pass


@pytest.fixture
async def setup(database: Database) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        mail = await stack.enter_async_context(MailSink().listening())
        posts = await stack.enter_async_context(PostSink().listening())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        opened = opened_on(database)
        channels: dict[str, Channel] = {
            "mail": MailChannel(mail_server(mail.url), "carrel@lab.org"),
            "lab": LabWebhook(posts.url, SECRET, http, opened.clock),
        }
        yield Setup(opened, mail, posts, channels)


async def test_a_booking_is_notified_by_mail_with_a_calendar_entry_and_by_a_signed_post(setup: Setup) -> None:
    made = (await (await setup.ada()).book(days=5, start=at(2))).json
    await setup.send_all()

    (mail,) = setup.mail.messages
    assert (mail["To"], mail["From"], mail["Message-ID"]) == (
        MEMBER,
        "carrel@lab.org",
        "<log-1-20261116T120000Z@carrel>",
    )
    assert mail["Subject"] == "Booked: NVIDIA-RTX-A6000 until Mon 23 Nov 2026 13:00 CET"
    (entry,) = mail.iter_attachments()
    assert entry.get_content_type() == "text/calendar"
    calendar = entry.get_content()
    assert "METHOD:PUBLISH" in calendar
    assert f"UID:{made['id']}@carrel" in calendar
    assert "DTEND:20261123T120000Z" in calendar

    ((headers, body),) = setup.posts.posts
    signed = headers["carrel-timestamp"].encode() + b"." + body
    expected = "sha256=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["carrel-signature"] == expected
    said = json.loads(body)
    assert (said["id"], said["occasion"], said["person"]) == (headers["carrel-notification-id"], "booked", MEMBER)
    assert abs(int(headers["carrel-timestamp"]) - NOW.timestamp()) < 1


async def test_changes_and_cancellations_are_notified_with_who_did_it_and_why(setup: Setup) -> None:
    ada, admin = await setup.ada(), await setup.opened.caller(ADMIN)
    made = (await ada.book(days=5, start=at(2))).json
    path = f"/api/v1/bookings/{made['id']}"
    await ada.patch(path, {"end": at(5)})
    await admin.post(f"{path}/cancel", {"reason": "the rack is moved"})
    await setup.send_all()

    occasions = [json.loads(body)["occasion"] for _, body in setup.posts.posts]
    assert sorted(occasions) == ["booked", "cancelled", "changed"]
    (cancelled,) = [mail for mail in setup.mail.messages if "cancelled" in mail["Subject"]]
    body = cancelled.get_body()
    assert body is not None
    assert f"Done by {ADMIN}: the rack is moved" in body.get_content()
    (entry,) = cancelled.iter_attachments()
    assert "STATUS:CANCELLED" in entry.get_content()


async def test_the_calendar_entry_in_a_mail_is_the_same_event_as_in_the_feed(setup: Setup) -> None:
    ada = await setup.ada()
    other = await setup.opened.caller(ADMIN)
    await other.book(days=1, start=at(20))  # the numbers of the log are not those of the booking
    made = (await ada.book(days=5, start=at(2), gpus=2)).json
    await ada.patch(f"/api/v1/bookings/{made['id']}", {"end": at(5)})
    await setup.send_all()
    feed = (await ada.post("/api/v1/feed")).json["url"]
    events = (await setup.opened.nobody.get(feed.removeprefix("http://carrel.test"))).body.decode()

    (changed,) = [mail for mail in setup.mail.messages if "changed" in mail["Subject"]]
    (entry,) = changed.iter_attachments()
    same = ("UID", "SEQUENCE", "DTSTART", "DTEND", "STATUS", "SUMMARY")
    in_mail, in_feed = (
        [line for line in text.splitlines() if line.startswith(same)] for text in (entry.get_content(), events)
    )
    assert in_mail == in_feed
    assert "SEQUENCE:2" in in_mail
    assert "SUMMARY:GPU: 2 × NVIDIA-RTX-A6000" in in_mail


async def test_a_mail_server_that_is_down_fails_no_booking_and_gets_the_mail_later(setup: Setup) -> None:
    setup.mail.refusal = "451 come back later"
    assert (await (await setup.ada()).book(days=5)).status == 201
    await setup.send_all()
    assert (len(setup.mail.messages), len(setup.posts.posts)) == (0, 1)

    setup.mail.refusal = ""
    await setup.send_all()
    assert len(setup.mail.messages) == 0, "not at once, so that the server is not overloaded"
    setup.opened.clock.now += timedelta(seconds=31)
    await setup.send_all()
    assert (len(setup.mail.messages), len(setup.posts.posts)) == (1, 1)


async def test_an_address_that_does_not_exist_is_given_up_at_once(setup: Setup) -> None:
    setup.mail.refusal = "550 no such user"
    await (await setup.ada()).book(days=5)
    await setup.send_all()
    setup.mail.refusal = ""
    setup.opened.clock.now += timedelta(hours=3)
    await setup.send_all()

    assert setup.mail.messages == []


async def test_several_replicas_send_one_notification(setup: Setup) -> None:
    await (await setup.ada()).book(days=5)
    replicas = [setup.replica() for _ in range(3)]
    await asyncio.gather(*(replica.round() for replica in replicas))

    assert (len(setup.mail.messages), len(setup.posts.posts)) == (1, 1)


async def test_a_mail_whose_confirmation_was_lost_is_sent_again_with_the_same_id(setup: Setup) -> None:
    setup.mail.is_cut = True
    await (await setup.ada()).book(days=5)
    await setup.send_all()
    setup.mail.is_cut = False
    setup.opened.clock.now += timedelta(minutes=10)
    await setup.send_all()

    assert [mail["Message-ID"] for mail in setup.mail.messages] == ["<log-1-20261116T120000Z@carrel>"] * 2


async def test_a_replica_without_a_channel_leaves_its_notifications_to_others(setup: Setup) -> None:
    await (await setup.ada()).book(days=5)
    setup.mail.refusal = "451 come back later"
    await setup.send_all()
    setup.mail.refusal = ""
    setup.opened.clock.now += timedelta(minutes=1)
    older = setup.replica(but=frozenset({"mail"}))
    await older.round()
    assert setup.mail.messages == []

    setup.opened.clock.now += timedelta(minutes=5)
    await setup.send_all()
    assert len(setup.mail.messages) == 1


async def test_reminders_are_sent_once_a_day_and_an_hour_before_the_end(setup: Setup) -> None:
    await (await setup.ada()).book(days=3)

    async def sent_after(hours: float) -> list[str]:
        setup.opened.clock.now = NOW + timedelta(hours=hours)
        setup.posts.posts.clear()
        await setup.send_all()
        await setup.send_all()
        return [json.loads(body)["occasion"] for _, body in setup.posts.posts]

    assert await sent_after(0) == ["booked"]
    assert await sent_after(47.9) == []
    assert await sent_after(48) == ["ends-in-24h"]
    assert await sent_after(60) == []
    assert await sent_after(71) == ["ends-in-1h"]
    assert await sent_after(73) == []


async def test_the_loss_of_a_gpu_is_notified_once(setup: Setup) -> None:
    details = {"namespace": "lab", "pod": "train-0"}
    lost = LogEntry(NOW, "the controller", "revoked", MEMBER, why="for lab/other-0", details=details)

    assert await setup.opened.service.outbox.note("revoked-uid-1", lost)
    assert not await setup.opened.service.outbox.note("revoked-uid-1", lost)
    await setup.send_all()

    (mail,) = setup.mail.messages
    assert mail["Subject"] == "train-0 lost its GPU to a booking"
    log = (await (await setup.ada()).get("/api/v1/audit")).json["items"]
    assert [(entry["action"], entry["why"]) for entry in log] == [("revoked", "for lab/other-0")]


FORGED = {
    "a line break in the address": "ada@lab.org\r\nBcc: everybody@lab.org",
    "no address": "system:serviceaccount:lab:default",
    "two addresses": "ada@lab.org, everybody@lab.org",
    "another address behind a comma": "ada,everybody@lab.org",
    "another address in brackets": "ada <everybody@lab.org>",
    "another address behind a comment": "(ada)everybody@lab.org",
    "another address behind a comma and other letters": "åsa,everybody@lab.org",
    "an encoded word and other letters": "å=?utf-8?q?=2c?=everybody@lab.org",
    "a quoted name with other letters": '"åsa,b"@lab.org',
    "a host on which Python's mail library stumbles": "ada@[?=",
}


@pytest.mark.parametrize("person", FORGED.values(), ids=FORGED)
async def test_an_address_cannot_forge_a_mail(person: str) -> None:
    mail = MailChannel(mail_server("smtp://127.0.0.1:1"), "carrel@lab.org")
    with pytest.raises(Undelivered) as undelivered:
        await mail.send(a_message(person), person)
    assert undelivered.value.is_final


def test_a_quoted_name_stays_as_it_is() -> None:
    mail = MailChannel(mail_server("smtp://127.0.0.1:1"), "carrel@lab.org")
    message = mail.mail(a_message(MEMBER), '"a,b"@lab.org')
    assert message["To"].addresses[0].addr_spec == '"a,b"@lab.org'


class TestAnAddressWithOtherLettersThanAscii:
    PERSON = "åsa.øst@lab.org"

    async def sent(self, extensions: list[str]) -> MailSink:
        async with MailSink().listening() as sink:
            sink.extensions = extensions
            mail = MailChannel(mail_server(sink.url), "carrel@lab.org")
            await mail.send(a_message(self.PERSON), self.PERSON)
        return sink

    async def test_gets_its_mail_by_a_server_that_can_send_there(self) -> None:
        sink = await self.sent(["SMTPUTF8", "8BITMIME"])
        assert (sink.recipients, len(sink.messages)) == ([self.PERSON], 1)

    async def test_is_tried_again_while_the_server_cannot(self) -> None:
        with pytest.raises(Undelivered, match="SMTPUTF8") as undelivered:
            await self.sent([])
        assert not undelivered.value.is_final


@pytest.mark.parametrize(
    "text",
    ["=?utf-8?q?=0d=0aBcc:_everybody=40lab.org?=", "g\r\nBcc: everybody@lab.org", "g\u2028Bcc: everybody@lab.org"],
    ids=["an encoded word", "a line break", "a line break of Unicode"],
)
def test_a_group_or_a_pod_cannot_forge_a_header(text: str) -> None:
    """A group's name comes from an identity provider, or from a hub."""
    mail = MailChannel(mail_server("smtp://127.0.0.1:1"), "carrel@lab.org")
    for occasion, facts in ((Occasion.CANCELLED, {"group": text, "model": "A6000"}), (Occasion.REVOKED, {"pod": text})):
        message = message_of(Notification("log-1", occasion, MEMBER, NOW, facts=facts), UTC)
        written = mail.mail(message, MEMBER).as_bytes()
        names = [line.partition(b":")[0].lower() for line in written.partition(b"\n\n")[0].splitlines()]
        assert b"bcc" not in names, written


async def test_a_notification_that_cannot_be_made_does_not_keep_others_from_being_sent(setup: Setup) -> None:
    odd = Notification("odd", Occasion.BOOKED, MEMBER, NOW, facts={"start": "yesterday", "end": "never"})
    await setup.opened.service.outbox.add([Planned(odd, "mail", NOW)])
    await (await setup.ada()).book(days=5, start=at(2))

    await setup.send_all()

    assert [mail["To"] for mail in setup.mail.messages] == [MEMBER]
    assert await setup.replica().round() == 0, "it is tried again later, not at once"


ADDRESSES = {
    "smtps://u:p%40ss@mail.lab.org": ("smtps", 465, "p@ss"),
    "smtp://mail.lab.org": ("smtp", 587, ""),
    "smtp://localhost:2525": ("smtp+plain", 2525, ""),
    "smtp+plain://mail.lab.org": ("smtp+plain", 25, ""),
}


@pytest.mark.parametrize(("url", "expected"), ADDRESSES.items(), ids=ADDRESSES)
def test_the_address_of_a_mail_server_is_understood(url: str, expected: tuple[str, int, str]) -> None:
    server = mail_server(url)
    assert (server.scheme, server.port, server.password) == expected
    assert "p@ss" not in repr(server)


@pytest.mark.parametrize("url", ["mail.lab.org", "http://mail.lab.org", "smtp://", "smtp://h:port"])
def test_the_refusal_of_a_mail_server_address_does_not_show_the_password(url: str) -> None:
    with pytest.raises(Malformed):
        mail_server(url)
