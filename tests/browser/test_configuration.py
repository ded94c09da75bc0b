"""Admins change a rule in a real browser: its consequences are shown before, and it is in force at once."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from kubernetes_in_memory.http_server import serve
from tests.browser.service import a_service, signed_in
from tests.kit.configuration import configure, wait_recorded
from tests.kit.configuring import deciding
from tests.kit.gpus import a_node
from tests.kit.lab import a_lab

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONGEST = "bookings.rules.maxDuration"
PAGE = "/admin/configuration"


async def test_a_rule_is_changed_with_its_consequences_before_and_counts_at_once(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        a_lab([a_node("n1", gpus=2)], in_real_time=True) as lab,
        serve(lab.api) as api,
        deciding(lab),
    ):
        await configure(lab.client, "lab: {timezone: Europe/Stockholm}")
        await wait_recorded(lab.client)
        async with (
            a_service(tmp_path, "--server", api.url, bookings=None) as url,
            signed_in(browser, url, "ada") as member,
            signed_in(browser, url, "grace", "lab-admin") as admin,
            signed_in(browser, url, "mary", "lab-admin") as another,
        ):
            await member.get_by_role("link", name="Book a GPU").click()
            await member.get_by_role("button", name="Book", exact=True).click()
            await member.wait_for_url("**/bookings/*")
            for page in (admin, another):
                await page.goto(PAGE)
            longest = admin.get_by_label("maxDuration", exact=True)
            await expect(longest).to_have_value("14d")

            await longest.fill("3 days")
            await admin.get_by_role("button", name="Check which bookings it would break").click()
            wrong = f"{LONGEST} is '3 days'; expected a length of time such as 90s, 10m, 24h or 14d"
            await expect(admin.get_by_role("alert")).to_contain_text(wrong)
            await longest.fill("3d")
            await admin.get_by_role("button", name="Check which bookings it would break").click()
            await expect(admin.get_by_role("status")).to_contain_text("1 booking would break these rules.")
            bookings = admin.get_by_role("region", name="Bookings that would break the rules")
            await expect(bookings).to_contain_text("ada@lab.example")
            await admin.get_by_label("Reason, for the audit log").fill("the deadline")
            await admin.get_by_role("button", name="Save", exact=True).click()
            await expect(admin.get_by_role("status")).to_contain_text("Saved.")
            row = admin.get_by_role("row").filter(has=longest)
            await expect(row).to_contain_text("changed by grace@lab.example on")

            await another.get_by_label("maxDuration", exact=True).fill("10d")
            await another.get_by_label("Reason, for the audit log").fill("more time")
            await another.get_by_role("button", name="Save", exact=True).click()
            meanwhile = f"Somebody else changed {LONGEST} meanwhile, from 14d to 3d. Save again if yours shall count."
            await expect(another.get_by_role("alert")).to_contain_text(meanwhile)

            await admin.goto("/admin")
            log = admin.get_by_role("main")
            await expect(log).to_contain_text(f"{LONGEST}: 14d → 3d")
            await expect(log).to_contain_text("the deadline")
