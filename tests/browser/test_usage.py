"""The usage page of a lab with four weeks of history: for eyes, for the keyboard, and for who does not see it."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from carrel.demo.bookings import history, make_bookings
from carrel.demo.run import example_nodes
from carrel.demo.usage_history import write_usage_history
from kubernetes_in_memory.http_server import serve
from tests.browser.service import ZONE, a_service, signed_in
from tests.browser.test_accessibility import found_by_axe
from tests.kit.lab import a_lab

pytestmark = pytest.mark.asyncio(loop_scope="module")
DAYS = 28


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder, nodes, random = tmp_path_factory.mktemp("booking"), example_nodes(), Random(1)
    database = f"sqlite:///{folder / 'bookings.db'}"
    await make_bookings(database, nodes, history(DAYS, nodes, random), ())
    await write_usage_history(database, nodes, DAYS, random, ZoneInfo(ZONE))
    async with (
        a_lab(nodes, in_real_time=True) as lab,
        serve(lab.api) as api,
        a_service(Path(folder), "--server", api.url) as url,
    ):
        yield url


@pytest.mark.parametrize("days", [7, 30, 365])
async def test_axe_finds_nothing_serious_and_nothing_is_wider_than_a_phone(
    browser: Browser, service: str, days: int
) -> None:
    async with signed_in(browser, service, "ada", "lab-admin", viewport={"width": 320, "height": 640}) as page:
        await page.goto(f"/usage?days={days}")
        assert await page.evaluate("document.documentElement.scrollWidth") == 320
        await expect(page.locator(".use-chart")).to_have_count(3)
        for summary in await page.locator("summary").all():
            await summary.click()
        assert await page.evaluate("document.documentElement.scrollWidth") == 320
        assert await found_by_axe(page) == []


async def test_what_is_idle_has_a_pattern_of_its_own_and_its_figures_in_a_table(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ada", "lab-admin") as page:
        await page.goto("/usage?days=30")
        idle = page.locator(".use-chart .use-idle").first
        assert "#idle" in await idle.evaluate("each => getComputedStyle(each).fill")
        assert await page.locator(".use-chart .gap").count() > 0, "the time in which the service was away"
        legend = page.get_by_role("list", name="Legend", exact=True)
        for word in ("active", "held and idle", "unknown", "booked", "nobody counted"):
            await expect(legend).to_contain_text(word)
        opener = page.locator("summary", has_text="Show as a table").first
        await opener.focus()
        await page.keyboard.press("Enter")
        table = page.get_by_role("region", name="A100 SXM4 80GB, GPU hours")
        await expect(table).to_be_visible()
        await expect(table.locator("thead")).to_have_text("GPU hoursBookedHeldActiveIdleUnknown")
        assert await table.locator("tbody tr").count() == 30
        # The last row is the sum of the others, which are rounded.
        cells = await table.locator("tr td:nth-of-type(2)").all_text_contents()
        *days, together = [float(cell.replace(",", "")) for cell in cells]
        assert sum(days) == pytest.approx(together, abs=0.05 * len(days))


async def test_a_member_sees_the_sums_and_themselves(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "hal") as page:
        await page.goto("/usage?days=30")
        people = page.get_by_role("region", name="GPU hours by person")
        await expect(people.locator("tbody tr").first).to_contain_text("hal@lab.example")
        assert {await row.text_content() for row in await people.locator("tbody th").all()} == {"hal@lab.example"}
        await expect(page.locator(".use-chart")).to_have_count(3)
        async with page.expect_download() as told:
            await page.get_by_role("link", name="CSV").click()
        lines = (await (await told.value).path()).read_text().splitlines()
        assert lines[0].startswith("from,until,person,group,model") and len(lines) > 1
        assert all("hal@lab.example" in line for line in lines[1:])
