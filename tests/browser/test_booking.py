"""People book, change and cancel: by mouse, by keyboard alone, on a phone, and without scripts."""

import re
import time
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.service import ZONE, signed_in
from tests.kit.eventually import LIMIT_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

A100 = "NVIDIA-A100-SXM4-80GB"
A6000 = "NVIDIA-RTX-A6000"


def in_days(days: int) -> date:
    return datetime.now(ZoneInfo(ZONE)).date() + timedelta(days=days)


def cell(model: str, day: date) -> str:
    return f'svg[data-model="{model}"] a.day[data-day="{day.isoformat()}"]'


async def start_and_end(page: Page) -> tuple[str, str]:
    start, end = (
        await page.get_by_label("From", exact=True).input_value(),
        await page.get_by_label("Until", exact=True).input_value(),
    )
    return start.partition("T")[0], end.partition("T")[0]


async def expect_booked(page: Page) -> None:
    await page.wait_for_url(re.compile("/bookings/"))
    await expect(page.get_by_role("status").first).to_contain_text("Booked.")


async def wait_active(page: Page) -> None:
    """A booking that is cancelled in its first second never started: wait until the second has passed."""
    give_up = time.monotonic() + LIMIT_S
    while "6 d 23 h left" not in await page.locator("main").inner_text():
        assert time.monotonic() < give_up
        await page.goto("/")


async def test_the_first_possible_start_is_filled_in_and_one_click_books_it(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ada") as page:
        await page.get_by_role("link", name="Book a GPU").click()
        await expect(page.locator("main")).to_contain_text("You can book a GPU now.")
        await expect(page.locator(".check.kept")).to_have_count(8)

        await page.get_by_role("button", name="Book", exact=True).click()

        await expect_booked(page)
        await wait_active(page)
        await expect(page.get_by_role("region", name="What is covered")).to_contain_text("1 booked GPU")


async def test_a_click_on_a_day_chooses_it_and_a_drag_chooses_several(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "bea", viewport={"width": 1280, "height": 900}) as page:
        await page.goto("/timeline")
        async with page.expect_response("**/timeline/verdict*") as verdict:
            await page.locator(cell(A6000, in_days(4))).click()
        assert "csrf" not in (await verdict.value).url, "the CSRF token must not be in a URL"
        assert await start_and_end(page) == (in_days(4).isoformat(), in_days(11).isoformat())

        first, last = (page.locator(cell(A6000, in_days(days))) for days in (3, 5))
        await first.scroll_into_view_if_needed()
        begin, finish = await first.bounding_box(), await last.bounding_box()
        assert begin is not None and finish is not None
        await page.mouse.move(begin["x"] + begin["width"] / 2, begin["y"] + begin["height"] / 2)
        await page.mouse.down()
        await page.mouse.move(finish["x"] + finish["width"] / 2, finish["y"] + 10, steps=5)
        async with page.expect_response("**/timeline/verdict*"):
            await page.mouse.up()

        assert await start_and_end(page) == (in_days(3).isoformat(), in_days(6).isoformat())
        await expect(page.get_by_label("Model", exact=True)).to_have_value(A6000)
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect_booked(page)
        await page.get_by_role("link", name="Show on the timeline").click()
        await expect(page.locator(f'svg[data-model="{A6000}"] .bar.mine')).to_have_count(1)


async def test_booking_works_with_the_keyboard_alone(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "cai") as page:
        await page.goto("/timeline")
        for _ in range(40):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.matches('a.day')"):
                break
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Shift+ArrowRight", "Shift+ArrowRight"):
            await page.keyboard.press(key)
        await expect(page.locator("a.day.chosen")).to_have_count(3)
        async with page.expect_response("**/timeline/verdict*"):
            await page.keyboard.press("Enter")

        assert await start_and_end(page) == (in_days(2).isoformat(), in_days(5).isoformat())
        await expect(page.get_by_label("Model", exact=True)).to_have_value(A6000)
        await expect(page.get_by_role("button", name="Book", exact=True)).to_be_focused()
        await page.keyboard.press("Enter")
        await expect_booked(page)


async def test_booking_works_on_a_phone(browser: Browser, service: str) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 320, "height": 640}, "has_touch": True, "is_mobile": True}
    async with signed_in(browser, service, "dev", **phone) as page:
        await page.goto("/timeline")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 320
        async with page.expect_response("**/timeline/verdict*"):
            await page.locator(cell(A100, in_days(1))).tap()
        await expect(page.get_by_role("button", name="Book", exact=True)).to_be_in_viewport()
        await page.get_by_role("button", name="Book", exact=True).tap()
        await expect_booked(page)


async def test_booking_works_without_scripts(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "eli", java_script_enabled=False) as page:
        await page.goto("/timeline")
        await page.locator(cell(A100, in_days(6))).click()
        assert await start_and_end(page) == (in_days(6).isoformat(), in_days(13).isoformat())
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect_booked(page)


async def test_rule_checks_change_while_the_person_types(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "fay") as page:
        await page.goto("/timeline")
        broken = page.locator(".check.broken")
        start = in_days(3)

        await page.get_by_label("From", exact=True).fill(f"{start}T09:00")
        await page.get_by_label("Until", exact=True).fill(f"{start}T12:00")
        await expect(broken).to_have_text(re.compile("at least 1 d"))
        await expect(page.locator("#verdict")).to_contain_text("A booking lasts at least 1 d; this is 3 h.")

        await page.get_by_label("Until", exact=True).fill(f"{in_days(30)}T09:00")
        await expect(broken).to_have_text(re.compile("at most 14 d"))

        await page.get_by_label("GPUs", exact=True).fill("9")
        await expect(broken).to_have_count(3)

        await page.get_by_label("GPUs", exact=True).fill("1")
        await page.get_by_label("Until", exact=True).fill(f"{in_days(8)}T09:00")
        await expect(broken).to_have_count(0)
        await expect(page.locator(".check.kept")).to_have_count(8)


async def test_a_refused_form_is_shown_again_with_every_reason(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "gus", java_script_enabled=False) as page:
        await page.goto("/timeline")
        await page.get_by_label("From", exact=True).fill("2020-01-01T09:00")
        await page.get_by_label("Until", exact=True).fill("2020-01-01T10:00")
        await page.get_by_role("button", name="Book", exact=True).click()

        await expect(page.locator(".check.broken")).to_have_count(2)
        await expect(page.locator("#verdict")).to_contain_text("has passed")
        await expect(page.get_by_label("From", exact=True)).to_have_value("2020-01-01T09:00")


async def test_the_consequence_is_shown_before_a_booking_is_cancelled(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "hal") as page:
        await page.goto("/timeline")
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect_booked(page)
        await wait_active(page)
        await page.get_by_role("link", name="Extend or cancel").click()

        await page.get_by_text("Cancel this booking").press("Enter")
        await expect(page.locator("details[open]")).to_contain_text("starts the cooldown of 14 d today")
        await page.get_by_role("button", name="Yes, cancel it").click()

        await expect(page.get_by_role("status").first).to_have_text("Cancelled.")
        await page.goto("/timeline")
        await expect(page.locator(".cooldown").first).to_be_attached()
        await expect(page.locator("main")).to_contain_text("Your cooldown ends then.")


async def test_the_rules_are_checked_before_an_end_is_changed(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ivy") as page:
        await page.goto("/timeline")
        async with page.expect_response("**/timeline/verdict*"):
            await page.locator(cell(A100, in_days(10))).click()
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect_booked(page)

        await page.get_by_label("Until", exact=True).fill(f"{in_days(40)}T00:00")
        await expect(page.locator(".check.broken")).to_have_text(re.compile("at most 14 d"))
        await page.get_by_label("Until", exact=True).fill(f"{in_days(13)}T00:00")
        await expect(page.locator(".check.broken")).to_have_count(0)
        await page.get_by_role("button", name="Save the changes").click()

        await expect(page.get_by_role("status").first).to_have_text("Changed.")
        await expect(page.locator("dl")).to_contain_text("3 d")


async def test_a_person_sees_who_booked_for_them_and_why(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "boss", "lab-admin") as page:
        await page.goto("/timeline")
        await page.get_by_text("Book for another person").click()
        await page.get_by_label("E-mail address").fill("jan@lab.example")
        await page.get_by_label("Reason, shown to them").fill("deadline on Friday")
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect_booked(page)
    async with signed_in(browser, service, "jan") as page:
        await expect(page.get_by_role("region", name="Your booking")).to_contain_text(
            "By boss@lab.example: deadline on Friday"
        )


async def test_user_input_is_shown_as_text_not_as_markup(browser: Browser, service: str) -> None:
    text = "<img src=x onerror=alert(1)>\"'"
    async with signed_in(browser, service, "root", "platform-admin") as page:
        await page.goto("/admin/maintenance")
        await page.locator("#m-start").fill(f"{in_days(1)}T08:00")
        await page.locator("#m-end").fill(f"{in_days(2)}T08:00")
        await page.locator("#m-what").select_option(f"model:{A6000}")
        await page.locator("#m-why").fill(text)
        await page.get_by_role("button", name="Set the maintenance").click()
        await expect(page.get_by_role("region", name="Maintenance windows")).to_contain_text(text)
        await page.goto("/timeline")
        assert text in (await page.locator(".bar.maintenance title").text_content() or "")
        assert await page.locator("img").count() == 0
        await page.goto("/admin")
        await page.get_by_text("Remove … maintenance").click()
        await page.get_by_role("button", name="Yes, remove it").click()
        await expect(page.get_by_role("status").first).to_contain_text("removed")
