"""The pages under a base path, as a JupyterHub shows its services, in a real browser."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Response, expect

from tests.browser.service import GPUS, a_service, signed_in
from tests.kit.ports import free_port

BASE = "/services/carrel"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def under(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("under")
    (folder / "gpus.yaml").write_text(GPUS)
    port = free_port()
    where = f"publicUrl: 'http://127.0.0.1:{port}{BASE}'"
    async with a_service(folder, "--inventory", str(folder / "gpus.yaml"), "--port", str(port), bookings=where) as url:
        yield url


def watched(page: Page) -> list[str]:
    """What was requested beyond the base path, or not found. The icon of the host is the host's."""
    astray: list[str] = []

    def note(answer: Response) -> None:
        path = answer.url.split("/", 3)[3]
        if not f"/{path}".startswith(f"{BASE}/") or answer.status >= 400:
            astray.append(f"{answer.status} {answer.url}")

    page.on("response", note)
    return astray


async def test_a_person_books_under_a_base_path(browser: Browser, under: str) -> None:
    async with signed_in(browser, under, "ada-under") as page:
        astray = watched(page)
        await expect(page).to_have_url(f"{under}{BASE}/")
        await page.get_by_role("link", name="Timeline", exact=True).first.click()
        await expect(page).to_have_url(f"{under}{BASE}/timeline")
        await page.get_by_label("Model").select_option("NVIDIA-RTX-A6000")
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect(page).to_have_url(re.compile(f"^{under}{BASE}/bookings/"))
        await page.get_by_role("link", name="Home", exact=True).click()
        await expect(page.get_by_role("link", name="Extend or cancel")).to_be_visible()
        await page.locator("#theme").click()
        await page.wait_for_function("document.cookie.includes('carrel_theme')")
        paths = {cookie["name"]: cookie["path"] for cookie in await page.context.cookies()}
        assert paths == {"carrel": BASE, "carrel_theme": BASE}
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("E-mail address")).to_be_visible()
        assert page.url.startswith(f"{under}{BASE}/sign-in")
        assert astray == []


async def test_an_admin_works_under_a_base_path(browser: Browser, under: str) -> None:
    async with signed_in(browser, under, "eva-under", "platform-admin") as page:
        astray = watched(page)
        for name in ("Map", "Usage", "Admin"):
            await page.get_by_role("link", name=name, exact=True).first.click()
            await expect(page).to_have_url(f"{under}{BASE}/{name.lower()}")
        form = page.locator("form[action$='/admin/roles']")
        await form.get_by_label("E-mail address").fill("bob@lab.example")
        await form.get_by_label("Reason").fill("he helps")
        await form.get_by_role("button").click()
        await expect(page).to_have_url(f"{under}{BASE}/admin?done=role")
        assert astray == []
