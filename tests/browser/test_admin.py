"""What admins do in a browser: by mouse, by keyboard, on a phone."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Browser, expect

from tests.browser.service import ZONE, signed_in

pytestmark = pytest.mark.asyncio(loop_scope="module")


def in_days(days: int) -> str:
    return (datetime.now(ZoneInfo(ZONE)).date() + timedelta(days=days)).isoformat()


async def test_an_admin_closes_gpus_of_a_node_by_keyboard_and_sees_whom_it_hits(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ann") as member:
        await member.goto("/timeline")
        await member.locator("#model").select_option(label="RTX A6000")
        await member.locator("#gpus").fill("4")
        await member.get_by_role("button", name="Book", exact=True).click()
        await member.wait_for_url("**/bookings/**")
    async with signed_in(browser, service, "boss", "lab-admin") as page:
        await page.goto("/admin")
        await page.get_by_role("link", name="Plan maintenance").press("Enter")
        await expect(page.locator("#hit")).to_contain_text("8 × A100 SXM4 80GB cannot be booked")
        await page.locator("#m-start").fill(f"{in_days(1)}T08:00")
        await page.locator("#m-end").fill(f"{in_days(1)}T18:00")
        await page.locator("#m-what").select_option("node:ws-1")
        await expect(page.locator("#hit")).to_contain_text("The booking of ann@lab.example")

        first = page.get_by_label("0 · RTX A6000")
        await first.focus()
        await page.keyboard.press("Space")

        await expect(page.locator("#hit")).to_contain_text("1 × RTX A6000 cannot be booked")
        await expect(first).to_be_focused()
        await expect(first).to_be_checked()
        await page.get_by_label("Reason").fill("new fans")
        await page.get_by_role("button", name="Set the maintenance").press("Enter")
        await expect(page.get_by_role("region", name="Maintenance windows")).to_contain_text("ws-1/0")
        await page.get_by_text("Remove … maintenance of ws-1/0").click()
        await page.get_by_role("button", name="Yes, remove it").click()
        await expect(page.get_by_role("status").first).to_contain_text("removed")
