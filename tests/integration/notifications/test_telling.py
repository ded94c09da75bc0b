"""People are told about their bookings: by a real mail server and a real HTTP server, on both databases."""

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

from carrel.bookings.notifications.interface import Channel, Undelivered
from carrel.bookings.notifications.messages import Notification, Occasion
from carrel.bookings.notifications.notifier import Notifier
from carrel.bookings.notifications.smtp import MailChannel, mail_server
from carrel.bookings.notifications.webhook import WebhookChannel
from carrel.bookings.people import ALL_SCOPES, Role, Token
from carrel.bookings.sign_in.secrets import hashed
from carrel.bookings.store.database import Database
from carrel.parsing import Malformed
from tests.kit.booking import ADMIN, MEMBER, NOW, Caller, Opened, at, opened_on
from tests.kit.sinks import MailSink, PostSink

SECRET = "a secret of both sides"


@dataclass
class Office:
    opened: Opened
    mail: MailSink
    posts: PostSink
    ways: Mapping[str, Channel]

    def replica(self, but: frozenset[str] = frozenset()) -> Notifier:
        """Without some of the ways, as one whose settings are older."""
        known = {name: way for name, way in self.ways.items() if name not in but}
        return Notifier(self.opened.service.outbox, self.opened.service.context.store, known, self.opened.clock)

    async def ada(self) -> Caller:
        return await self.opened.caller(MEMBER)

    async def tell(self) -> None:
        notifier = self.replica()
        while await notifier.round():
            pass


@pytest.fixture
async def office(database: Database) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        mail = await stack.enter_async_context(MailSink().listening())
        posts = await stack.enter_async_context(PostSink().listening())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        opened = opened_on(database)
        context, clock = opened.service.context, opened.clock
        ways: dict[str, Channel] = {
            "mail": MailChannel(mail_server(mail.url), "carrel@lab.org", context.zone, "https://gpus.lab.org"),
            "webhook": WebhookChannel(posts.url, SECRET, http, context.zone, clock),
        }
        yield Office(opened, mail, posts, ways)


async def test_who_books_gets_a_mail_with_a_calendar_entry_and_a_signed_post(office: Office) -> None:
    made = (await (await office.ada()).book(days=5, start=at(2))).json
    await office.tell()

    (mail,) = office.mail.messages
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

    ((headers, body),) = office.posts.posts
    signed = headers["carrel-timestamp"].encode() + b"." + body
    expected = "sha256=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["carrel-signature"] == expected
    said = json.loads(body)
    assert (said["id"], said["occasion"], said["person"]) == (headers["carrel-letter"], "booked", MEMBER)
    assert abs(int(headers["carrel-timestamp"]) - NOW.timestamp()) < 1


async def test_changes_and_cancellations_are_told_with_who_did_it_and_why(office: Office) -> None:
    ada, admin = await office.ada(), await office.opened.caller(ADMIN)
    made = (await ada.book(days=5, start=at(2))).json
    path = f"/api/v1/bookings/{made['id']}"
    await ada.patch(path, {"end": at(5)})
    await admin.post(f"{path}/cancel", {"reason": "the rack is moved"})
    await office.tell()

    said = [json.loads(body)["occasion"] for _, body in office.posts.posts]
    assert sorted(said) == ["booked", "cancelled", "changed"]
    (cancelled,) = [mail for mail in office.mail.messages if "cancelled" in mail["Subject"]]
    body = cancelled.get_body()
    assert body is not None
    assert f"Done by {ADMIN}: the rack is moved" in body.get_content()
    (entry,) = cancelled.iter_attachments()
    assert "STATUS:CANCELLED" in entry.get_content()


async def test_a_mail_server_that_is_away_fails_no_booking_and_gets_the_letter_later(office: Office) -> None:
    office.mail.refusal = "451 come back later"
    assert (await (await office.ada()).book(days=5)).status == 201
    await office.tell()
    assert (len(office.mail.messages), len(office.posts.posts)) == (0, 1)

    office.mail.refusal = ""
    await office.tell()
    assert len(office.mail.messages) == 0, "not at once: the server would be overrun"
    office.opened.clock.now += timedelta(seconds=31)
    await office.tell()
    assert (len(office.mail.messages), len(office.posts.posts)) == (1, 1)


async def test_an_address_where_nobody_lives_is_given_up_at_once(office: Office) -> None:
    office.mail.refusal = "550 nobody lives here"
    await (await office.ada()).book(days=5)
    await office.tell()
    office.mail.refusal = ""
    office.opened.clock.now += timedelta(hours=3)
    await office.tell()

    assert office.mail.messages == []


async def test_two_replicas_tell_once(office: Office) -> None:
    await (await office.ada()).book(days=5)
    replicas = [office.replica() for _ in range(3)]
    await asyncio.gather(*(replica.round() for replica in replicas))

    assert (len(office.mail.messages), len(office.posts.posts)) == (1, 1)


async def test_a_letter_whose_receipt_was_lost_comes_again_as_the_same(office: Office) -> None:
    office.mail.is_cut = True
    await (await office.ada()).book(days=5)
    await office.tell()
    office.mail.is_cut = False
    office.opened.clock.now += timedelta(minutes=10)
    await office.tell()

    assert [mail["Message-ID"] for mail in office.mail.messages] == ["<log-1-20261116T120000Z@carrel>"] * 2


async def test_a_replica_that_was_not_told_of_a_way_yet_leaves_its_letters_to_others(office: Office) -> None:
    await (await office.ada()).book(days=5)
    office.mail.refusal = "451 come back later"
    await office.tell()
    office.mail.refusal = ""
    office.opened.clock.now += timedelta(minutes=1)
    older = office.replica(but=frozenset({"mail"}))
    await older.round()
    assert office.mail.messages == []

    office.opened.clock.now += timedelta(minutes=5)
    await office.tell()
    assert len(office.mail.messages) == 1


async def test_an_end_that_comes_near_is_told_a_day_and_an_hour_before_once(office: Office) -> None:
    await (await office.ada()).book(days=3)

    async def told_after(hours: float) -> list[str]:
        office.opened.clock.now = NOW + timedelta(hours=hours)
        office.posts.posts.clear()
        await office.tell()
        await office.tell()
        return [json.loads(body)["occasion"] for _, body in office.posts.posts]

    assert await told_after(0) == ["booked"]
    assert await told_after(47.9) == []
    assert await told_after(48) == ["ends-in-24h"]
    assert await told_after(60) == []
    assert await told_after(71) == ["ends-in-1h"]
    assert await told_after(73) == []


async def test_a_pod_that_lost_its_card_is_told_once_and_only_by_our_own_processes(office: Office) -> None:
    roles = frozenset({Role.SERVICE})
    token = Token("t", "system:serviceaccount:carrel:controller", "", ALL_SCOPES, NOW, NOW + timedelta(days=90), roles)
    await office.opened.people.add_token(hashed("carrel_controller"), token)
    controller = Caller(office.opened.app, "carrel_controller")
    notice = {"id": "uid-1", "person": MEMBER, "namespace": "lab", "pod": "train-0", "why": "for lab/other-0"}

    assert (await (await office.ada()).post("/api/v1/notices/revoked", notice)).status == 403
    assert (await controller.post("/api/v1/notices/revoked", notice)).json == {"is_new": True}
    assert (await controller.post("/api/v1/notices/revoked", notice)).json == {"is_new": False}
    await office.tell()

    (mail,) = office.mail.messages
    assert mail["Subject"] == "train-0 lost its card to a booking"
    log = (await (await office.ada()).get("/api/v1/audit")).json["items"]
    assert [(entry["action"], entry["why"]) for entry in log] == [("revoked", "for lab/other-0")]


FORGED = {
    "a line break in the address": "ada@lab.org\r\nBcc: everybody@lab.org",
    "no address": "system:serviceaccount:lab:default",
    "two addresses": "ada@lab.org, everybody@lab.org",
    "another address behind a comma": "ada,everybody@lab.org",
    "another address in brackets": "ada <everybody@lab.org>",
    "another address behind a comment": "(ada)everybody@lab.org",
}


@pytest.mark.parametrize("person", FORGED.values(), ids=FORGED)
async def test_nothing_in_a_letter_forges_a_mail(person: str) -> None:
    mail = MailChannel(mail_server("smtp://127.0.0.1:1"), "carrel@lab.org", UTC)
    with pytest.raises(Undelivered) as undelivered:
        await mail.send(Notification("log-1", Occasion.BOOKED, person, NOW))
    assert undelivered.value.is_final


ADDRESSES = {
    "smtps://u:p%40ss@mail.lab.org": ("smtps", 465, "p@ss"),
    "smtp://mail.lab.org": ("smtp", 587, ""),
    "smtp://localhost:2525": ("smtp+plain", 2525, ""),
    "smtp+plain://mail.lab.org": ("smtp+plain", 25, ""),
}


@pytest.mark.parametrize(("url", "expected"), ADDRESSES.items(), ids=ADDRESSES)
def test_how_a_mail_server_is_named(url: str, expected: tuple[str, int, str]) -> None:
    server = mail_server(url)
    assert (server.scheme, server.port, server.password) == expected
    assert "p@ss" not in repr(server)


@pytest.mark.parametrize("url", ["mail.lab.org", "http://mail.lab.org", "smtp://", "smtp://h:port"])
def test_what_is_no_mail_server_is_told_without_its_password(url: str) -> None:
    with pytest.raises(Malformed):
        mail_server(url)
