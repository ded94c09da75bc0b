"""Every page is accessible: in both themes, at every width, without other hosts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from kubernetes_in_memory.http_server import serve
from tests.browser.service import a_service, signed_in
from tests.kit.gpu_use import BUSY, QUIET, ReportingAgent, holds_since
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
PAGES = (
    *("/", "/timeline", "/map", "/usage", "/admin", "/admin/configuration", "/account", "/no-such-page"),
    *("/admin/maintenance", "/admin/log", "/admin/people/bob@lab.example"),
)
RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
COLOURS = {"type": "rule", "values": ["color-contrast"]}


async def found_by_axe(page: Page) -> list[str]:
    """Serious and critical findings of axe: all rules in the light theme, colours in the dark theme."""
    await page.evaluate(AXE)
    found = []
    for theme, what in (("light", RULES), ("dark", COLOURS)):
        await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type] # both are valid
        result: dict[str, Any] = await page.evaluate("what => axe.run(document, {runOnly: what})", what)
        found += [
            f"{page.url} ({theme}) {each['id']}: {each['help']}: {node['html'][:200]}"
            for each in result["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
    return found


@asynccontextmanager
async def pods_that_do_different_things(lab: Lab, scheduler: Replica) -> AsyncIterator[None]:
    agent, told = (
        ReportingAgent(lab, "n1", 3),
        {"carrel.dev/tier": "opportunistic", "carrel.dev/user": "ada@lab.example"},
    )
    for name in ("trains", "idles", "is-stuck"):
        pod = await lab.pod(name, limits={"nvidia.com/gpu": "1"}, annotations=told)
        assert await scheduler.bind(pod, "n1") is None
        await holds_since(lab, name, lab.clock.now - timedelta(hours=3))
    await agent.reports_of_today(gpu_0=BUSY, gpu_1=QUIET, gpu_2=replace(BUSY, utilisation=0.0))
    yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """With a cluster, so that there is a map, and with pods whose GPUs are active, idle, and nobody knows what."""
    nodes = [a_node("n1", islands="aabb"), a_node("n2", gpus=1, unusable="unhealthy: XID 79")]
    async with (
        a_lab(nodes, in_real_time=True) as lab,
        lab.replica() as scheduler,
        pods_that_do_different_things(lab, scheduler),
        serve(lab.api) as api,
        a_service(tmp_path_factory.mktemp("booking"), "--server", api.url) as url,
    ):
        yield url


async def test_axe_finds_nothing_serious_on_any_page(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ada", "platform-admin") as page:
        await page.goto("/timeline")
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect(page.get_by_role("status").first).to_contain_text("Booked.")
        wrong = await found_by_axe(page)
        for path in (*PAGES, "/sign-in"):
            await page.goto(path)
            if path == "/map":
                for mark in ("active", "idle", "unknown"):
                    await expect(page.locator(f".gpu-link .use.{mark}")).to_have_count(1)
            for summary in await page.locator("summary").all():
                await summary.click()
            wrong += await found_by_axe(page)

        assert not wrong, "\n".join(wrong)


async def test_no_page_is_wider_than_a_screen_of_320_pixels(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ada", "platform-admin", viewport={"width": 320, "height": 640}) as page:
        widths = {}
        for path in PAGES:
            await page.goto(path)
            widths[path] = await page.evaluate("document.documentElement.scrollWidth")

        assert widths == dict.fromkeys(PAGES, 320)


async def test_the_theme_follows_the_system_until_the_person_chooses_one(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ada", color_scheme="light") as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = await page.evaluate(ground)
        await page.get_by_role("button", name="Light or dark theme").click()
        dark = await page.evaluate(ground)
        await page.goto("/timeline")

        assert dark != light
        assert await page.evaluate(ground) == dark


async def test_pages_load_nothing_from_other_hosts(browser: Browser, service: str) -> None:
    async with signed_in(browser, service, "ada", "platform-admin") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for path in PAGES:
            await page.goto(path)

        assert len(asked) > len(PAGES)
        assert [url for url in asked if not url.startswith(service)] == []
