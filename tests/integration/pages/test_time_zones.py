"""A person may see times in another zone than the lab's: on pages, in mails, in the API's sentences, and by the command
line, which asks the API. Nobody else's times change, and no booking moves."""

import re
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.notifications.channels import Channels
from carrel.bookings.notifications.mail import MailChannel, mail_server
from carrel.bookings.notifications.messages import Message
from carrel.bookings.notifications.notifier import Notifier
from carrel.bookings.people import Role
from carrel.bookings.store.people import SqlPeople
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, OTHER, Opened, at, made
from tests.kit.gpus import A6000

KOLKATA = ZoneInfo("Asia/Kolkata")


def fields_of(page: str, action: str) -> dict[str, str]:
    """The inputs of the form that is sent there, as they are; without its CSRF token."""
    form = page.partition(f'action="{action}"')[2].partition("</form>")[0]
    inputs = [dict(re.findall(r'(\w+)="([^"]*)"', each)) for each in re.findall(r"<input [^>]*>", form)]
    given = {each["name"]: each.get("value", "") for each in inputs if each.get("type") != "checkbox"}
    return {name: value for name, value in given.items() if name != "csrf"}


@pytest.fixture
async def ada(opened: Opened) -> Visitor:
    return await a_visitor(opened, MEMBER)


@pytest.fixture
async def bob(opened: Opened) -> Visitor:
    return await a_visitor(opened, OTHER)


async def test_all_pages_follow_the_zone_that_a_person_chose_and_those_of_others_do_not(
    opened: Opened, ada: Visitor, bob: Visitor
) -> None:
    booking = await made(await opened.caller(MEMBER), days=5, start=at(2))
    chosen = await ada.send("/account", zone="Asia/Kolkata")
    assert (chosen.status, chosen.headers["location"]) == (303, "/account?done=zone")

    for path in ("/", "/account", "/timeline", "/usage", f"/bookings/{booking['id']}"):
        page = text_of(await ada.get(path))
        assert "times are in Asia/Kolkata" in page and "CET" not in page, path
    own = text_of(await ada.get(f"/bookings/{booking['id']}"))
    assert "Wed 18 Nov 17:30" in own and 'value="2026-11-23T17:30"' in own
    others = text_of(await bob.get("/timeline/table"))
    assert "Wed 18 Nov 13:00" in others and "times are in Europe/Stockholm" in others
    assert "times are in Asia/Kolkata" in text_of(await ada.get("/timeline/table"))

    await ada.send("/account", zone="")
    assert "times are in Europe/Stockholm" in text_of(await ada.get("/"))


async def test_what_a_person_types_is_meant_in_their_zone(opened: Opened, ada: Visitor) -> None:
    await ada.send("/account", zone="Asia/Kolkata")
    form = {"model": A6000, "gpus": "1", "start": "2026-11-20T09:00", "end": "2026-11-25T09:00"}
    assert (await ada.send("/timeline", **form)).status == 303

    (booking,) = (await (await opened.caller(MEMBER)).get("/api/v1/bookings?user=me")).json["items"]
    assert (booking["start"], booking["end"]) == ("2026-11-20T03:30:00Z", "2026-11-25T03:30:00Z"), "the API stays UTC"


async def test_a_page_from_before_the_zone_was_changed_moves_no_booking(opened: Opened, ada: Visitor) -> None:
    booking = await made(await opened.caller(MEMBER), days=5, start=at(2))
    path = f"/bookings/{booking['id']}"
    old = fields_of(text_of(await ada.get(path)), f"{path}/change")
    planned = fields_of(text_of(await ada.get("/timeline")), "/timeline")
    await ada.send("/account", zone="Asia/Kolkata")

    told = "Times are shown in Asia/Kolkata now: look at them again."
    assert told in text_of(await ada.get(f"{path}/verdict?{urlencode(old)}"))
    refused = await ada.send(f"{path}/change", **old)
    assert (refused.status, told in text_of(refused)) == (422, True)
    new = fields_of(text_of(refused), f"{path}/change")
    assert (new["zone"], new["end"]) == ("Asia/Kolkata", "2026-11-23T17:30")
    refused = await ada.send("/timeline", **planned)
    assert (refused.status, told in text_of(refused)) == (422, True)
    new = fields_of(text_of(refused), "/timeline")
    assert (new["zone"], new["start"], new["end"]) == ("Asia/Kolkata", "", "")
    (found,) = (await (await opened.caller(MEMBER)).get("/api/v1/bookings?user=me")).json["items"]
    assert {name: found[name] for name in ("start", "end")} == {name: booking[name] for name in ("start", "end")}


async def test_maintenance_typed_in_another_zone_is_not_set(opened: Opened) -> None:
    admin = await a_visitor(opened, ADMIN, Role.LAB_ADMIN)
    form = fields_of(text_of(await admin.get("/admin/maintenance")), "/admin/maintenance")
    form |= {"what": f"model:{A6000}", "why": "fans"}
    await admin.send("/account", zone="Asia/Kolkata")

    refused = await admin.send("/admin/maintenance", **form)

    assert (refused.status, "Times are shown in Asia/Kolkata now" in text_of(refused)) == (422, True)
    new = fields_of(text_of(refused), "/admin/maintenance")
    assert new["start"] != form["start"] and new["zone"] == "Asia/Kolkata"
    assert (await admin.send("/admin/maintenance", **form | new)).status == 303


async def test_a_day_of_the_timeline_begins_at_the_persons_midnight(opened: Opened, ada: Visitor) -> None:
    """What is free is counted for each day; the days of two zones are not the same."""
    caller = await opened.caller(MEMBER)
    await ada.send("/account", zone="Pacific/Auckland")

    there = (await caller.get(f"/api/v1/availability?model={A6000}&days=1")).json

    assert there["zone"] == "Pacific/Auckland"
    assert there["items"][0]["days"][0]["day"] == "2026-11-17", "noon of 16 November in UTC is the 17th there"


async def test_sentences_of_the_api_and_the_zone_that_programs_are_told_are_the_persons(
    opened: Opened, ada: Visitor
) -> None:
    caller, other = await opened.caller(MEMBER), await opened.caller(OTHER)
    await made(caller, days=5, start=at(2))
    await ada.send("/account", zone="America/New_York")

    refused = (await caller.book(days=5, start=at(9))).json
    told = [(await each.get("/api/v1/rules")).json["zone"] for each in (caller, other)]

    assert told == ["America/New_York", "Europe/Stockholm"]
    assert "EST" in str(refused["problems"]) and "CET" not in str(refused), refused
    assert refused["earliest_start"].endswith("Z")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "Europe", "x" * 5000])
async def test_what_is_no_zone_is_refused_and_changes_nothing(ada: Visitor, zone: str) -> None:
    await ada.send("/account", zone="Asia/Kolkata")

    answer = await ada.send("/account", zone=zone)

    assert answer.status == 422 and "is no time zone" in text_of(answer)
    assert "times are in Asia/Kolkata" in text_of(await ada.get("/"))


async def test_a_mail_and_the_text_of_its_calendar_entry_are_in_the_zone_of_its_reader(opened: Opened) -> None:
    sent: list[str] = []

    class Kept(MailChannel):
        async def send(self, message: Message, address: str) -> None:
            sent.append(str(self.mail(message, address)))

    database = opened.service.queries.store._database
    await SqlPeople(database).choose_zone(MEMBER, KOLKATA)
    for email in (MEMBER, OTHER):
        await made(await opened.caller(email), days=5, start=at(2))
    kept = Kept(mail_server("smtp://localhost"), "gpus@lab.example")
    channels = Channels(ZoneInfo("Europe/Stockholm"), of={"mail": kept})
    notifier = Notifier(opened.service.outbox, opened.service.queries.store, channels, opened.clock)
    while await notifier.round():
        pass

    (ada,), (bob,) = [[text for text in sent if f"To: {email}" in text] for email in (MEMBER, OTHER)]
    assert "Mon 23 Nov 2026 17:30 IST" in ada and "CET" not in ada
    assert "Mon 23 Nov 2026 13:00 CET" in bob and "IST" not in bob
