"""The configuration page: everything with its reason; rules and tiers are changed there, with a preview."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from carrel.bookings import lab_configuration
from carrel.bookings.app import booking_app
from carrel.bookings.lab_configuration import LabConfiguration
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.bookings.sign_in.request_guard import RequestLimits
from carrel.cluster.configuration_record import (
    CHANGES,
    TEXT,
    ConfigurationWatch,
    Reads,
    first_configuration,
)
from carrel.configuration.current import CurrentConfiguration
from carrel.ids import BookingId
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, MANY, MEMBER, NOW, Opened
from tests.kit.configuration import configure, wait_recorded
from tests.kit.configuring import deciding
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import A6000
from tests.kit.lab import Lab, a_lab

PAGE = "/admin/configuration"
LONGEST = "bookings.rules.maxDuration"
REQUEST = {"model": A6000, "gpus": "1", "start": "2026-11-20T09:00", "end": "2026-11-25T09:00"}


@dataclass
class ConfiguredService:
    lab: Lab
    controller: asyncio.Future[None]
    current: CurrentConfiguration
    admin: Visitor
    member: Visitor


@contextlib.asynccontextmanager
async def configured(opened: Opened, text: str = "{}") -> AsyncIterator[ConfiguredService]:
    """A service in a cluster with this configuration, and the controller that decides about it."""
    async with a_lab([]) as lab, deciding(lab) as controller:
        await configure(lab.client, text)
        await wait_recorded(lab.client)
        current = CurrentConfiguration(await first_configuration(lab.client, "carrel"))
        watching = asyncio.ensure_future(
            ConfigurationWatch(lab.client, "carrel", current, Reads(["bookings", "tiers"])).run()
        )
        queries = replace(opened.service.queries, rules=current.value.bookings.rules)
        current.on_change(lambda new: queries.take_rules(new.bookings.rules))
        service = replace(
            opened.service, queries=queries, configuration=LabConfiguration(current, lab.client, "carrel")
        )
        there = replace(opened, service=service, app=booking_app(service, RequestLimits(address=MANY)))
        try:
            yield ConfiguredService(
                lab, controller, current, await a_visitor(there, ADMIN), await a_visitor(there, MEMBER)
            )
        finally:
            watching.cancel()


async def test_it_is_for_admins_only(opened: Opened) -> None:
    async with configured(opened) as there:
        assert (await there.member.get(PAGE)).status == 403
        assert (await there.member.send(PAGE, why="mine", **{LONGEST: "99d"})).status == 403
        assert there.current.value.bookings.rules.max_duration.days == 14


async def test_every_field_is_shown_with_its_value_its_source_and_its_reason(opened: Opened) -> None:
    async with configured(opened, "bookings: {rules: {maxGpus: 2}}") as there:
        page = text_of(await there.admin.get(PAGE))

    for words in (
        "maxGpus",
        "installation",
        "The most GPUs of one booking of a person",
        "so nobody has more at a time",
    ):
        assert words in page


async def test_what_other_rules_would_break_is_shown_before_they_are_saved(opened: Opened) -> None:
    async with configured(opened) as there:
        assert (await there.member.send("/timeline", **REQUEST)).status == 303

        short = text_of(await there.admin.send(PAGE, step="check", **{LONGEST: "3d"}))
        long = text_of(await there.admin.send(PAGE, step="check", **{LONGEST: "5d"}))

        assert "1 booking would break these rules." in short
        assert "No booking would break these rules." in long
        assert "UTC" not in short.partition("What the installation decides")[0], "times are in the zone of the lab"
        assert there.current.value.bookings.rules.max_duration.days == 14, "nothing is saved"


async def test_a_rule_that_is_saved_is_in_force_with_who_changed_it_and_why(opened: Opened) -> None:
    async with configured(opened) as there:
        saved = await there.admin.send(PAGE, why="more people", **{LONGEST: "3d", "tiers.minimumTime": "0s"})
        assert (saved.status, saved.headers["location"]) == (303, f"{PAGE}?done=saved")

        page = text_of(await there.admin.get(f"{PAGE}?done=saved"))
        refused = await there.member.send("/timeline", **REQUEST)
        log = text_of(await there.admin.get("/admin"))

    assert there.current.value.bookings.rules.max_duration.days == 3
    assert not there.current.value.tiers.minimum_time
    assert "Saved." in page and f"changed by {ADMIN}" in page
    assert refused.status == 422 and "at most 3 d" in text_of(refused)
    assert "bookings.rules.maxDuration: 14d → 3d" in log and "more people" in log


@pytest.mark.parametrize("text", ["nan", "-1d", "x", "1e99", "5", "[", "9999999d", "1d; drop"])
async def test_a_value_that_is_none_is_explained_and_changes_nothing(opened: Opened, text: str) -> None:
    async with configured(opened) as there:
        answer = await there.admin.send(PAGE, why="try", **{LONGEST: text})

    assert answer.status == 422
    assert "expected a length of time such as 90s, 10m, 24h or 14d, from 36s to 3650d" in text_of(answer)
    assert there.current.value.bookings.rules.max_duration.days == 14


async def test_a_change_needs_a_reason_and_must_change_something(opened: Opened) -> None:
    async with configured(opened) as there:
        assert "Give a reason" in text_of(await there.admin.send(PAGE, **{LONGEST: "3d"}))
        assert "Nothing differs" in text_of(await there.admin.send(PAGE, why="again", **{LONGEST: "14d"}))
        shorter = {"bookings.rules.minDuration": "20d"}
        assert "does not allow" in text_of(await there.admin.send(PAGE, why="oops", **shorter))


async def test_other_fields_cannot_be_changed_here_whatever_is_sent(opened: Opened) -> None:
    async with configured(opened) as there:
        sent = {"hubs.accounts": "[system:serviceaccount:evil:hub]", "memory.unit": "GiB"}
        assert "Nothing differs" in text_of(await there.admin.send(PAGE, why="mine", **sent))
        people = await there.lab.client.get(CONFIG_MAPS, CHANGES, "carrel")

    assert not people.get("data", {}).get(TEXT)


async def test_what_was_broken_by_hand_is_said_and_does_not_take_effect(opened: Opened) -> None:
    async with configured(opened) as there:
        await configure(there.lab.client, "bookings: {rules: {maxDuratoin: 3d}}")
        async with asyncio.timeout(LIMIT_S):
            while "maxDuratoin is no field" not in (page := text_of(await there.admin.get(PAGE))):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    assert "did you mean maxDuration" in page and "the last good configuration goes on" in page
    assert there.current.value.bookings.rules.max_duration.days == 14


async def test_without_a_controller_the_page_says_that_it_is_not_in_force_yet(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_configuration, "IN_FORCE_S", 0.1)
    async with configured(opened) as there:
        there.controller.cancel()
        await asyncio.wait([there.controller])
        saved = await there.admin.send(PAGE, why="more people", **{LONGEST: "3d"})
        page = text_of(await there.admin.get(saved.headers["location"]))
    assert "No controller has decided about the last change yet; it takes effect when one leads." in page
    assert "Saved" not in page
    assert there.current.value.bookings.rules.max_duration.days == 14


async def test_a_service_with_a_file_says_where_to_change_it(opened: Opened) -> None:
    admin = await a_visitor(opened, ADMIN)
    assert "change it there" in text_of(await admin.get(PAGE))
    assert "change it there" in text_of(await admin.send(PAGE, why="mine", **{LONGEST: "3d"}))


async def test_of_two_admins_at_once_neither_undoes_what_the_other_changed(opened: Opened) -> None:
    """Each sends the whole form. What a person did not touch is not theirs."""
    shown = {f"seen:{LONGEST}": "14d", "seen:bookings.rules.maxGpus": "4"}
    async with configured(opened) as there:
        first = {**shown, LONGEST: "7d", "bookings.rules.maxGpus": "4"}
        second = {**shown, LONGEST: "14d", "bookings.rules.maxGpus": "2"}
        assert (await there.admin.send(PAGE, why="deadline", **first)).status == 303
        assert (await there.admin.send(PAGE, why="more people", **second)).status == 303
        rules = there.current.value.bookings.rules
        assert (rules.max_duration.days, rules.max_gpus) == (7, 2)

        same = {**shown, LONGEST: "3d"}
        told = await there.admin.send(PAGE, why="sooner", **same)
        assert told.status == 422
        assert f"Somebody else changed {LONGEST} meanwhile, from 14d to 7d." in text_of(told)
        assert there.current.value.bookings.rules.max_duration.days == 7
        assert f'name="{LONGEST}" value="3d"' in text_of(told) and f'name="seen:{LONGEST}" value="7d"' in text_of(told)

        assert (await there.admin.send(PAGE, why="sooner", **{LONGEST: "3d", f"seen:{LONGEST}": "7d"})).status == 303
        assert there.current.value.bookings.rules.max_duration.days == 3


async def test_a_rule_changes_while_more_than_a_thousand_bookings_run_and_all_of_them_stay(opened: Opened) -> None:
    day = timedelta(days=1)
    async with configured(opened) as there:
        async with opened.service.queries.store.writing() as writing:
            for number in range(1100):
                who = f"p{number}@lab.example"
                booking = Booking(BookingId(f"b{number}"), who, A6000, NOW - day, NOW + 5 * day, 1)
                await writing.add(BookingRecord(booking, NOW - day, who))

        tried = text_of(await there.admin.send(PAGE, step="check", **{LONGEST: "3d"}))
        saved = await there.admin.send(PAGE, why="more people", **{LONGEST: "3d"})
        async with opened.service.queries.store.reading() as reading:
            left = await reading.within(NOW, NOW + day)

    assert "1,100 bookings would break these rules." in tried and "… and 1080 more." in tried
    assert saved.status == 303 and there.current.value.bookings.rules.max_duration.days == 3
    assert len(left) == 1100
    assert {each.booking.ends for each in left} == {NOW + 5 * day}
