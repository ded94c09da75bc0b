"""`python -m tools.pictures`: takes the pictures in `docs/` again, from the demo and its booking service's pages.

It needs Chromium, and about a minute.
"""

import asyncio
from io import StringIO
from pathlib import Path

from playwright.async_api import Browser, ViewportSize, expect
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

from carrel.demo.run import example_manifests, example_nodes
from carrel.demo.screen import DemoView, render
from carrel.demo.system import DemoOptions, running_demo
from tests.browser.service import a_browser, signed_in

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 150, 46
"""Of the terminal, in characters."""
FONTS = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
SCREEN = ViewportSize(width=1200, height=800)
STORY_S = 180.0
HISTORY_DAYS = 30
"""So that the timeline shows bookings of more people."""
OTHERS_S = 20.0
"""After the story: then other people's pods have come, and those of the story are still there."""


async def main() -> None:
    options = DemoOptions(example_nodes(), list(example_manifests()), days=HISTORY_DAYS)
    async with a_browser() as browser, running_demo(options) as demo:
        async with asyncio.timeout(STORY_S):
            while not any("what is free: cleo/" in line for line in demo.view().bookings):  # noqa: ASYNC110 # drawn anew
                await asyncio.sleep(0.5)
        await asyncio.sleep(OTHERS_S)
        draw_demo(demo.view())
        await take_map(browser, demo.booking_url)
        await take_timeline(browser, demo.booking_url)
        await take_usage(browser, demo.booking_url)


def draw_demo(view: DemoView) -> None:
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=StringIO(), force_terminal=True)
    console.print(render(view, HEIGHT))
    svg = console.export_svg(title="make demo", theme=DEFAULT_TERMINAL_THEME)
    # The fonts that Rich names would be loaded from elsewhere.
    start, end = svg.index("<style>") + len("<style>"), svg.index(".terminal-")
    svg = svg[:start] + "\n    " + svg[end:].replace("Fira Code, monospace", FONTS)
    (DOCS / "demo.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


async def take_map(browser: Browser, url: str) -> None:
    async with signed_in(browser, url, "cleo", viewport=SCREEN, color_scheme="dark") as page:
        await page.goto("/map")
        await page.locator(".gpu-link:has(.share.booked)").first.click()
        await expect(page.get_by_role("region", name="Pods on this GPU")).to_be_visible()
        await page.screenshot(path=DOCS / "map.png")


async def take_timeline(browser: Browser, url: str) -> None:
    async with signed_in(browser, url, "zoe", viewport=SCREEN) as page:
        await page.goto("/timeline")
        await expect(page.locator(".check.kept")).to_have_count(7)
        await page.screenshot(path=DOCS / "timeline.png")


async def take_usage(browser: Browser, url: str) -> None:
    async with signed_in(browser, url, "admin", "platform-admin", viewport=SCREEN) as page:
        await page.goto("/usage?days=30")
        await expect(page.locator(".use-chart")).to_have_count(3)
        await page.screenshot(path=DOCS / "usage.png")


if __name__ == "__main__":
    asyncio.run(main())
