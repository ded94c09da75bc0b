"""The pages over HTTP: what they show, to whom, and how they answer invalid input."""

import re
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from carrel.bookings.people import Role, Scope
from carrel.bookings.store.database import Database
from carrel.configuration.schema import BookingRules
from carrel.parsing.addresses import is_address
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, DAY, MEMBER, NOW, OTHER, Answer, Opened, opened_on, with_rules
from tests.kit.gpus import A6000

PAGES = ("/", "/timeline", "/timeline/table", "/map", "/usage")
REQUEST = {"model": A6000, "gpus": "1", "start": "2026-11-20T09:00", "end": "2026-11-25T09:00"}


@pytest.fixture
async def member(opened: Opened) -> Visitor:
    return await a_visitor(opened, MEMBER)


@pytest.fixture
async def admin(opened: Opened) -> Visitor:
    return await a_visitor(opened, ADMIN)


def value_of(page: str, field: str) -> str:
    found = re.search(rf'name="{field}"[^>]*value="([^"]*)"', page)
    assert found is not None
    return found[1]


def models_of(answer: Answer) -> str:
    found = re.search(r'<ul class="models">.*?</ul>', text_of(answer), re.DOTALL)
    assert found is not None
    return found[0]


async def book(visitor: Visitor, **other: str) -> str:
    """The address of the booking."""
    answer = await visitor.send("/timeline", **{**REQUEST, **other})
    assert answer.status == 303, text_of(answer)
    return answer.headers["location"].partition("?")[0]


# --- who sees what ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PAGES, "/admin", "/bookings/x"])
async def test_a_person_who_is_not_signed_in_is_redirected_to_the_sign_in_page(opened: Opened, path: str) -> None:
    answer = await opened.nobody.get(path, accept="text/html")

    assert answer.status == 303
    assert "/sign-in?back=" in answer.headers["location"]


async def test_a_page_whose_session_has_ended_is_reloaded(opened: Opened) -> None:
    """Otherwise the sign-in page would appear inside the form."""
    answer = await opened.nobody.get("/timeline/verdict", accept="text/html, */*", hx_request="true")

    assert (answer.status, answer.headers["hx-refresh"]) == (401, "true")


@pytest.mark.parametrize("path", PAGES)
async def test_a_member_sees_every_page_except_the_admin_page(member: Visitor, path: str) -> None:
    answer = await member.get(path)

    assert answer.status == 200
    assert 'href="/admin"' not in text_of(answer)


async def test_the_admin_page_is_for_admins(member: Visitor, admin: Visitor) -> None:
    assert (await admin.get("/admin")).status == 200
    refused = await member.get("/admin")
    assert refused.status == 403
    assert "This page is for lab admins" in text_of(refused)


async def test_pages_have_no_inline_scripts_or_styles(member: Visitor, admin: Visitor) -> None:
    for answer in [await member.get(path) for path in PAGES] + [await admin.get("/admin")]:
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text_of(answer))
        assert "script-src 'self'" in answer.headers["content-security-policy"]


# --- booking ---------------------------------------------------------------------------------------------------------


async def test_the_first_possible_start_is_filled_in_with_the_reason(opened: Opened, member: Visitor) -> None:
    page = text_of(await member.get("/timeline"))
    assert value_of(page, "start") == "2026-11-16T13:00"  # in Stockholm
    assert "You can book a GPU now." in page

    where = await book(member, start="2026-11-16T13:00", end="2026-11-18T13:00", suggested="2026-11-16T13:00")
    opened.clock.now += DAY
    await member.send(f"{where}/cancel")
    opened.clock.now += DAY

    page = text_of(await member.get("/timeline"))
    assert value_of(page, "start") == "2026-12-01T13:00"
    assert "The first possible start is Tue 1 Dec 13:00. Your cooldown ends then." in page
    assert 'class="cooldown"' in page


async def test_when_all_gpus_are_booked_the_start_is_when_the_first_becomes_free(
    opened: Opened, member: Visitor
) -> None:
    for who in (OTHER, "cleo@lab.org"):
        await book(await a_visitor(opened, who), start="2026-11-16T13:00", end="2026-11-18T13:00")

    page = text_of(await member.get("/timeline"))

    assert value_of(page, "start") == "2026-11-18T13:00"
    assert "A GPU is free for the whole time then." in page
    assert "0 of 2 can be booked now · bookable from Wed 18 Nov 13:00" in page


async def test_home_says_what_to_do_first_until_a_person_has_booked(opened: Opened, member: Visitor) -> None:
    first = "What to do first"
    assert first in text_of(await member.get("/"))

    await book(member)

    assert first not in text_of(await member.get("/"))
    opened.clock.now = NOW + timedelta(days=12)  # it is over, and the next may not start yet
    assert first not in text_of(await member.get("/"))


async def test_home_shows_bookable_gpus_and_unheld_gpus_separately(opened: Opened, member: Visitor) -> None:
    assert "held by no pod" not in models_of(await member.get("/"))  # unknown without a cluster

    opened.inventory.unheld_gpus = {A6000: 0}
    told = models_of(await member.get("/"))

    assert "0 held by no pod" in told
    assert '<span class="figure">2</span> <span class="quiet">of 2 can be booked now</span>' in told
    assert "free" not in re.sub(r"<[^>]+>", "", told)


async def test_a_booking_from_now_has_its_whole_length_although_the_minute_has_begun(
    opened: Opened, member: Visitor
) -> None:
    opened.clock.now = NOW + timedelta(seconds=40)
    where = await book(member, start="2026-11-16T13:00", end="2026-11-17T13:00", suggested="2026-11-16T13:00")

    assert "<dd>1 d</dd>" in text_of(await member.get(where))


async def test_a_form_sent_twice_books_once(member: Visitor) -> None:
    assert await book(member, key="k1") == await book(member, key="k1")


async def test_a_form_of_another_site_books_nothing(opened: Opened, member: Visitor) -> None:
    answer = await member.send("/timeline", csrf="forged", **REQUEST)

    assert answer.status == 403
    assert (await (await opened.caller(MEMBER)).get("/api/v1/bookings")).json["items"] == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        pytest.param({"start": "2027-03-28T02:30", "end": "2027-03-30T09:00"}, "02:30 does not exist", id="DST"),
        pytest.param({"gpus": "3"}, "There are 2 GPUs", id="more GPUs than there are"),
        pytest.param({"gpus": "🦆"}, "is not a number of GPUs", id="not a number"),
        pytest.param({"end": "2026-11-20T08:00"}, "The end must be after the start", id="end before start"),
        pytest.param({"start": "1970-01-02T00:00"}, "has passed", id="year 1970"),
        pytest.param({"start": "1900-01-01T00:00"}, "in the past or future", id="year 1900"),
        pytest.param(
            {"start": "9999-12-30T00:00", "end": "9999-12-31T23:59"},
            "in the past or future",
            id="year 9999",
        ),
        pytest.param({"model": "<b>h100</b>"}, "There is no model", id="an unknown model"),
        pytest.param({"model": ""}, "Choose a model.", id="no model"),
        pytest.param({"user": OTHER}, "Only a lab admin may act for others", id="for another person"),
    ],
)
async def test_a_refused_form_is_shown_again_with_the_reason(member: Visitor, other: dict[str, str], said: str) -> None:
    answer = await member.send("/timeline", **{**REQUEST, **other})

    assert 400 <= answer.status < 500
    assert said in text_of(answer)
    assert "<b>h100" not in text_of(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/timeline?from=9999-12-31",
        "/timeline?from=0001-01-01",
        "/timeline?from=%F0%9F%A6%86&day=x&model=%3Cscript%3E",
        "/timeline?day=9999-12-31&model=x",
        "/timeline?day=2027-03-28",
        "/timeline?start=x&end=y",
        "/timeline/verdict",
        "/timeline/verdict?model=a6000&start=2026-11-20T09:00&end=2026-11-25T09:00&gpus=-1",
        "/timeline/table?from=nonsense",
        "/usage?days=-1",
        "/usage.csv?days=1e9",
        "/map?gpu=%00&node=%27",
        "/bookings/none",
        "/bookings/none/verdict?end=x",
        "/no-such-page",
    ],
)
async def test_an_invalid_address_is_answered_without_an_error(member: Visitor, path: str) -> None:
    answer = await member.get(path)

    assert answer.status in (200, 404)
    assert "<script>" not in text_of(answer)


# --- one booking -----------------------------------------------------------------------------------------------------


async def test_a_change_by_somebody_else_is_not_overwritten(member: Visitor) -> None:
    where = await book(member)
    assert (await member.send(f"{where}/change", end="2026-11-24T09:00", version="1")).status == 303

    late = await member.send(f"{where}/change", end="2026-11-26T09:00", version="1")

    assert late.status == 409
    assert "changed meanwhile" in text_of(late)


async def test_others_can_see_a_booking_and_an_admin_can_cancel_it_with_a_reason(
    opened: Opened, member: Visitor, admin: Visitor
) -> None:
    where = await book(member)
    other = await a_visitor(opened, OTHER)

    assert "Cancel this booking" not in text_of(await other.get(where))
    assert (await other.send(f"{where}/cancel", reason="mine now")).status == 403
    assert (await admin.send(f"{where}/cancel")).status == 403
    assert (await admin.send(f"{where}/cancel", reason="broken fan")).status == 303
    assert "Reason: broken fan" in text_of(await member.get(where))


async def test_a_banner_warns_a_day_before_the_end(opened: Opened, member: Visitor) -> None:
    await book(member)
    opened.clock.now = NOW + timedelta(days=7)
    assert "Your booking ends in" not in text_of(await member.get("/"))

    opened.clock.now = NOW + timedelta(days=8)
    page = text_of(await member.get("/"))

    assert "Your booking ends in" in page
    assert re.search(r"data-until=\"2026-11-25T08:00:00\+00:00\">20 h<", page)


async def test_a_calendar_feed_is_shown_once_works_and_can_be_revoked(opened: Opened, member: Visitor) -> None:
    await book(member)
    made = await member.send("/feed")
    page = text_of(made)
    assert made.headers["cache-control"] == "no-store"
    address = re.search(r"<code>http://carrel.test(/[^<]+)</code>", page)
    assert address is not None

    feed = await opened.nobody.get(address[1])

    assert feed.status == 200
    assert b"BEGIN:VEVENT" in feed.body
    assert address[1] not in text_of(await member.get("/"))
    assert (await member.send("/feed/revoke")).status == 303
    assert (await opened.nobody.get(address[1])).status == 404


async def test_a_read_only_token_cannot_create_a_feed(opened: Opened) -> None:
    reader = await opened.caller(MEMBER, frozenset({Scope.READ}))

    for path in ("/feed", "/feed/revoke", "/api/v1/feed"):
        assert (await reader.post(path)).status == 403


# --- usage and admin -------------------------------------------------------------------------------------------------


async def test_usage_can_be_downloaded_as_csv(opened: Opened, member: Visitor) -> None:
    await book(member)
    opened.clock.now = NOW + timedelta(days=10)

    answer = await member.get("/usage.csv?days=14")

    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.body.decode().splitlines()[1].endswith(f"{MEMBER},,{A6000},1,120.0,,,,,,")
    assert "120.0" in text_of(await member.get("/usage"))


async def test_usage_counts_bookings_only_until_now(opened: Opened, member: Visitor) -> None:
    await book(member, start="2026-11-16T13:00", end="2026-11-18T13:00", suggested="2026-11-16T13:00")
    opened.clock.now = NOW + timedelta(minutes=15)

    assert (await member.get("/usage.csv")).body.decode().splitlines()[1].endswith(",0.25,,,,,,")
    assert '<dt>Booked</dt><dd class="figure">0.2 <small>GPU hours' in text_of(await member.get("/usage"))


async def test_the_log_shows_local_times(member: Visitor, admin: Visitor) -> None:
    await book(member)
    log = text_of(await admin.get("/admin")).partition('id="log"')[2]

    assert ">Fri 20 Nov 09:00</time>" in log


async def test_control_characters_are_removed_from_notes(opened: Opened, member: Visitor) -> None:
    where = await book(member, note="\x1b]0;mine\x07 line\none \x9b2J\x00")

    shown = (await (await opened.caller(ADMIN)).get(f"/api/v1{where}")).json
    assert shown["note"] == "]0;mine line\none 2J"


async def test_a_member_sees_only_their_own_usage(opened: Opened, member: Visitor, admin: Visitor) -> None:
    await book(member)
    opened.clock.now = NOW + timedelta(days=10)
    other = await a_visitor(opened, OTHER)

    for path in ("/usage", "/usage.csv"):
        assert MEMBER not in text_of(await other.get(path))
        assert MEMBER in text_of(await admin.get(path))


@pytest.mark.parametrize("offset", ["", "Z", "-12:00"])
async def test_a_booking_at_the_end_of_the_calendar_is_refused(opened: Opened, member: Visitor, offset: str) -> None:
    far = {"start": f"9999-12-20T00:00{offset}", "end": f"9999-12-31T23:00{offset}"}

    assert (await member.send("/timeline", **{**REQUEST, **far})).status == 422
    await book(member)


async def test_a_lab_admin_books_on_the_page_for_e_mail_addresses_only(admin: Visitor) -> None:
    page = await admin.send("/timeline", **{**REQUEST, "user": "ada", "reason": "by phone"})

    assert page.status == 422
    assert "“ada” is not an e-mail address" in text_of(page)


# --- groups ----------------------------------------------------------------------------------------------------------


async def test_the_form_suggests_the_groups_that_one_may_book_for(
    opened: Opened, member: Visitor, admin: Visitor
) -> None:
    await opened.manage("vision", MEMBER)
    await opened.manage("nlp", OTHER, members=(MEMBER,))
    guest = await a_visitor(opened, "gil@lab.org")

    assert options_of(await member.get("/timeline")) == ["", "vision"]
    assert options_of(await admin.get("/timeline")) == ["", "nlp", "vision"]
    assert options_of(await guest.get("/timeline")) == []


def options_of(answer: Answer) -> list[str]:
    found = re.search(r'<select id="group".*?</select>', text_of(answer), re.DOTALL)
    return re.findall(r'<option value="([^"]*)"', found[0]) if found else []


async def test_a_manager_books_for_the_group_on_the_page(opened: Opened, member: Visitor) -> None:
    await opened.manage("vision", MEMBER, members=(OTHER,))
    other, guest = await a_visitor(opened, OTHER), await a_visitor(opened, "gil@lab.org")
    where = await book(member, group="vision", note="course")

    mine, members, guests = [text_of(await each.get(where)) for each in (member, other, guest)]
    assert f"Booking of your group vision, made by {MEMBER}" in mine
    assert "The group can book again from" in mine
    assert "Cancel this booking" in mine
    assert "Reason, shown to" not in mine
    assert "Booking of your group vision" in members
    assert "Cancel this booking" not in members
    assert "Booking of the group vision" in guests
    assert "vision" in text_of(await guest.get("/timeline?from=2026-11-20"))
    assert (await other.send(f"{where}/cancel")).status == 403
    assert (await member.send(f"{where}/cancel")).status == 303


async def test_a_note_is_shown_to_those_who_may_see_it(opened: Opened, member: Visitor) -> None:
    where = await book(member, note="a private note")
    other = await a_visitor(opened, OTHER)

    assert "a private note" in text_of(await member.get(where))
    assert "a private note" not in text_of(await other.get(where))


async def test_the_feedback_on_the_form_is_that_for_the_group(opened: Opened, member: Visitor) -> None:
    await opened.manage("vision", MEMBER)
    limited = with_rules(opened, BookingRules(max_gpus=1, group_max_gpus=2))
    visitor = replace(member, caller=limited.nobody)
    form = "&".join(f"{name}={value}" for name, value in {**REQUEST, "gpus": "2"}.items())

    own, of_group = [text_of(await visitor.get(f"/timeline/verdict?{form}&group={each}")) for each in ("", "vision")]
    foreign = text_of(await visitor.get(f"/timeline/verdict?{form}&group=nlp"))

    assert "A booking has at most 1 GPU; 2 are asked for." in own
    assert "at most 2 GPUs for a group" in of_group
    assert "are asked for" not in of_group
    assert "only its managers book" in foreign


async def test_an_admin_says_on_the_page_who_is_in_a_group(opened: Opened, member: Visitor, admin: Visitor) -> None:
    form = {"group": "vision", "people": MEMBER, "role": "manager", "why": "leads it"}

    assert (await member.send("/admin/groups", **form)).status == 403
    where = (await admin.send("/admin/groups", **form)).headers["location"]
    assert where.startswith("/admin?done=group")
    assert 'name="group" list="g-names" maxlength="255" value="vision"' in text_of(await admin.get(where)), (
        "for the next"
    )
    assert "somebody-elses" not in text_of(await admin.get("/admin?done=group&group=somebody-elses"))
    page = text_of(await admin.get("/admin"))
    assert re.search(rf"<th scope=\"row\">vision</th><td>{MEMBER}</td><td>manager</td><td>this list</td>", page)
    assert "group manager" in page, "it is in the log"
    for wrong in ({"people": "ada"}, {"people": ""}, {"group": ""}, {"role": "boss"}):
        assert (await admin.send("/admin/groups", **{**form, **wrong})).status == 422
    assert (await admin.send("/admin/groups", **{**form, "role": "not listed"})).status == 303
    assert "There are no groups yet." in text_of(await admin.get("/admin"))


async def test_a_pasted_list_is_taken_as_a_whole_or_not_at_all(admin: Visitor) -> None:
    course = {"group": "course", "role": "member", "why": "autumn"}
    refused = await admin.send("/admin/groups", **course, people="ada@lab.org\r\nbob\r\n\r\ncleo@")

    page = text_of(refused)
    assert refused.status == 422
    assert "Line 2: “bob” is not an e-mail address" in page
    assert "Line 4: “cleo@” is not an e-mail address" in page
    assert ">ada@lab.org\nbob\n\ncleo@</textarea>" in page, "what was pasted can be corrected"
    assert "There are no groups yet." in page

    people = "\n".join(f"s{number}@lab.org" for number in range(30))
    for told in ("30 changed, 0 were", "0 changed, 30 were"):
        sent = await admin.send("/admin/groups", **course, people=people)
        assert told in text_of(await admin.get(sent.headers["location"]))


async def test_a_manager_on_a_pasted_list_of_members_stays_one_and_is_named(admin: Visitor) -> None:
    form = {"group": "course", "why": "autumn"}
    await admin.send("/admin/groups", **form, role="manager", people=MEMBER)

    page = text_of(await admin.send("/admin/groups", **form, role="member", people=f"{MEMBER} {OTHER}"))

    assert f"{MEMBER} is a manager and stays one. To change that, choose “not listed” first" in page
    assert "1 changed, 0 were as they should be already." in page
    assert re.search(rf"<td>{MEMBER}</td><td>manager</td>", page)


async def test_the_booking_form_keeps_its_group_when_other_weeks_or_a_day_are_chosen(
    opened: Opened, member: Visitor
) -> None:
    await opened.manage("vision", MEMBER)

    page = text_of(await member.get("/timeline?group=vision")).replace("&amp;", "&")

    weeks = re.findall(r'class="button" href="([^"]+)"', page)
    day = re.search(r'<a class="day [a-z]+" href="([^"]+)"', page)
    assert day is not None
    assert len(weeks) == 3
    assert all("group=vision" in link for link in (*weeks, day[1]))


async def test_a_planned_booking_is_moved_on_its_page_and_a_field_left_alone_changes_nothing(member: Visitor) -> None:
    where = await book(member)
    page = text_of(await member.get(where))
    was = {name: value_of(page, name) for name in ("start", "end", "gpus")}

    moved = {**was, "model": A6000, "gpus": "2", "start": "2026-11-21T09:00", "end": "2026-11-23T09:00"}
    assert (await member.send(f"{where}/change", **moved)).status == 303
    page = text_of(await member.get(where))
    assert [value_of(page, name) for name in ("start", "end", "gpus")] == ["2026-11-21T09:00", "2026-11-23T09:00", "2"]
    wrong = await member.send(f"{where}/change", model="T4", gpus="0", start="x", end="2026-11-23T09:00")
    assert wrong.status == 422
    told = text_of(wrong)
    assert "From: “x” is not a date and time." in told
    assert "“0” is not a number of GPUs." in told


async def test_the_log_is_filtered_on_its_page_and_as_csv(member: Visitor, admin: Visitor) -> None:
    await book(member)
    await admin.send("/admin/groups", group="vision", people=OTHER, role="member", why="=1+1")

    booked = text_of(await admin.get(f"/admin/log?person={MEMBER}&action=booked"))
    assert MEMBER in booked
    assert "=1+1" not in booked
    csv = text_of(await admin.get("/admin/log.csv?action=group-member"))
    assert csv.count("\r\n") == 2
    assert f"{OTHER},,'=1+1" in csv
    assert "No entry matches." in text_of(await admin.get("/admin/log?start=2030-01-01T00:00"))
    assert (await admin.get("/admin/log?start=x")).status == 422
    assert (await member.get("/admin/log")).status == 403


# --- maintenance and roles -------------------------------------------------------------------------------------------


async def test_maintenance_makes_gpus_unavailable_until_it_is_removed(member: Visitor, admin: Visitor) -> None:
    closed = {
        "what": f"model:{A6000}",
        "gpus": "2",
        "start": "2026-11-21T00:00",
        "end": "2026-11-22T00:00",
        "why": "new fan",
    }
    assert (await admin.send("/admin/maintenance", **closed)).status == 303
    assert (await member.send("/timeline", **REQUEST)).status == 422
    where = re.search(r'action="(/admin/maintenance/[^"]+)"', text_of(await admin.get("/admin")))
    assert where is not None

    assert (await member.send(where[1])).status == 403
    assert (await admin.send(where[1])).status == 303

    await book(member)


TOMORROW = {
    "what": f"model:{A6000}",
    "gpus": "2",
    "why": "new fan",
    "start": "2026-11-17T08:00",
    "end": "2026-11-17T18:00",
}


@pytest.mark.parametrize("page", ["/", "/timeline"])
async def test_what_is_free_for_less_than_the_shortest_booking_cannot_be_booked_now(
    member: Visitor, admin: Visitor, page: str
) -> None:
    assert (await admin.send("/admin/maintenance", **TOMORROW)).status == 303

    told = re.sub(r"<[^>]+>", "", text_of(await member.get(page)))

    assert "0 of 2 can be booked now" in told
    assert "2 free until Tue 17 Nov 08:00 (maintenance); bookable from Tue 17 Nov 18:00" in told


async def test_the_first_possible_start_is_a_link_to_a_form_that_can_be_sent(member: Visitor, admin: Visitor) -> None:
    assert (await admin.send("/admin/maintenance", **TOMORROW)).status == 303
    asked = {"model": A6000, "gpus": "2", "start": "2026-11-16T13:00", "end": "2026-11-19T13:00"}

    refused = text_of(await member.send("/timeline", **asked))
    assert "Taken: 2 GPUs by maintenance (new fan) from Tue 17 Nov 2026 08:00 CET" in refused
    link = re.search(r'First possible start: <a href="([^"]+)"', refused)
    assert link is not None
    page = text_of(await member.get(link[1].replace("&amp;", "&")))

    assert [value_of(page, name) for name in ("start", "end", "gpus")] == [
        "2026-11-17T18:00",
        "2026-11-20T18:00",
        "2",
    ]
    assert "broken:" not in page


async def test_a_change_that_is_refused_says_what_would_work(member: Visitor) -> None:
    where = await book(member)

    tried = text_of(await member.get(f"{where}/verdict?end=2026-11-20T15:00"))
    refused = await member.send(f"{where}/change", end="2026-12-24T09:00")

    assert "A booking lasts at least 1 d; this is 6 h. To end it earlier, cancel it." in tried
    assert f"Try: <code>carrel cancel {where.rpartition('/')[2][:8]}</code>" in tried
    assert refused.status == 422
    assert f"Try: carrel extend {where.rpartition('/')[2][:8]} --until 2026-12-04T09:00" in text_of(refused)


async def test_only_a_platform_admin_grants_roles_with_a_reason(opened: Opened, admin: Visitor) -> None:
    platform = await a_visitor(opened, "root@lab.org", Role.PLATFORM_ADMIN)
    wanted = {"email": OTHER, "role": "lab-admin"}

    assert (await admin.send("/admin/roles", why="help", **wanted)).status == 403
    assert (await platform.send("/admin/roles", **wanted)).status == 422
    assert (await platform.send("/admin/roles", why="help", **wanted)).status == 303
    assert (await opened.people.person(OTHER)).granted is Role.LAB_ADMIN


@pytest.mark.parametrize("email", ["a b@x", "a@b@c", "@x", "a@", "nobody", f"{'a' * 250}@x.org"])
async def test_a_role_is_granted_to_e_mail_addresses_only(opened: Opened, email: str) -> None:
    platform = await a_visitor(opened, "root@lab.org", Role.PLATFORM_ADMIN)

    by_page = await platform.send("/admin/roles", email=email, role="lab-admin", why="help")

    assert by_page.status == 422
    assert "is not an e-mail address" in text_of(by_page)
    assert not is_address(email)
    assert (await opened.people.person(email)).granted is None


async def test_a_day_without_midnight_can_be_chosen(with_tables: Path, tmp_path: Path) -> None:
    """In Santiago the clock is set forward at midnight."""
    database = Database(f"sqlite:///{shutil.copy(with_tables, tmp_path)}")
    opened = opened_on(database, zone="America/Santiago")
    visitor = await a_visitor(opened, MEMBER)

    page = text_of(await visitor.get("/timeline?day=2027-09-05&from=2027-09-05"))

    assert value_of(page, "start") == "2027-09-05T01:00"
    await database.aclose()
