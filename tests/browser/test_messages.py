"""How a person chooses where they are told, in a real browser; and the button in a message, without a sign-in."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from carrel.bookings.notifications.buttons import Button, ButtonKind
from carrel.bookings.sign_in.secrets import hashed, new_secret
from carrel.bookings.store.buttons import SqlButtons
from carrel.bookings.store.database import Database
from tests.browser.service import a_service, signed_in
from tests.browser.test_accessibility import found_by_axe
from tests.kit.sinks import PostSink

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_person_gives_an_address_and_tests_it(browser: Browser, tmp_path: Path) -> None:
    async with (
        PostSink().listening() as chat,
        a_service(tmp_path, more=f"notifications: {{allowedHosts: ['{chat.host}']}}") as url,
        signed_in(browser, url, "ada") as page,
    ):
        await page.goto("/account")
        await page.get_by_label("Slack").fill(chat.url)
        await page.get_by_label("Maintenance hits me").uncheck()
        await page.locator("form[action='/account/messages'] button").click()
        await expect(page.get_by_role("status")).to_contain_text("Send yourself a test")
        await page.get_by_role("button", name="Send a test by Slack").click()
        await expect(page.get_by_role("status")).to_contain_text("The test was sent")
        assert b"A test message" in chat.posts[0][1]
        await expect(page.get_by_label("Maintenance hits me")).not_to_be_checked()
        assert await found_by_axe(page) == []


async def test_a_button_in_a_message_is_pressed_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    async with a_service(tmp_path) as url:
        async with signed_in(browser, url, "ada") as page:
            await page.get_by_role("link", name="Book a GPU").click()
            await page.get_by_role("button", name="Book", exact=True).click()
            await expect(page.get_by_text("Booked. Your pods")).to_be_visible()
            booking = re.search("/bookings/([0-9a-f]+)", page.url)
            assert booking is not None
        secret, database = new_secret(), Database(f"sqlite:///{tmp_path / 'bookings.db'}")
        expires = datetime.now(UTC) + timedelta(hours=1)
        button = Button(ButtonKind.EXTEND, "ada@lab.example", "ends-in-24h-1", expires, booking[1], version=1)
        await SqlButtons(database).add({hashed(secret): button})
        await database.aclose()

        context = await browser.new_context(base_url=url, viewport={"width": 390, "height": 780})
        phone = await context.new_page()
        await phone.goto(f"/act/{secret}")
        await expect(phone.get_by_text("Then it will end")).to_be_visible()
        assert await found_by_axe(phone) == []
        await phone.get_by_role("button", name="Extend by a day").click()
        await expect(phone.get_by_role("status")).to_contain_text("Extended: the booking ends")
        await phone.goto(f"/act/{secret}")
        await expect(phone.get_by_role("alert")).to_contain_text("was done already")
        await context.close()
