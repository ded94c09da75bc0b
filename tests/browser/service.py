"""A real `carrel booking` process, and a real Chromium that opens its pages."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.kit.configuration import config_file
from tests.kit.eventually import LIMIT_S
from tests.kit.programs import chromium, node

GPUS = """
nodes:
  - name: dgx-1
    gpus:
      - {count: 8, model: NVIDIA-A100-SXM4-80GB, memoryMiB: 81920, perIsland: 4, bandwidthGBps: 600}
  - name: ws-1
    gpus:
      - {count: 4, model: NVIDIA-RTX-A6000, memoryMiB: 49140}
"""
ZONE = "Europe/Stockholm"

expect.set_options(timeout=LIMIT_S * 1000)


@contextlib.asynccontextmanager
async def a_browser(*flags: str) -> AsyncIterator[Browser]:
    # Chromium refuses its sandbox to root, and tests in containers run as root.
    usual = ["--no-sandbox"] if os.geteuid() == 0 else []
    found = chromium()
    # Playwright has a Node of its own, which needs a library that many machines lack.
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(node())
    async with async_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, **found.environment}
        browser = await playwright.chromium.launch(
            executable_path=found.program, args=[*usual, *flags], env=environment
        )
        try:
            yield browser
        finally:
            await browser.close()


CONFIGURATION = f"""\
lab: {{{{timezone: {ZONE}}}}}
bookings:
  rules: {{{{settlingTime: 0s}}}}  # so that what a page says of cancelling does not depend on how fast a test is
  {{bookings}}
{{more}}
"""


@contextlib.asynccontextmanager
async def a_service(
    folder: Path, *arguments: str, sign_in: str = "--dev", bookings: str | None = "", more: str = "", **secrets: str
) -> AsyncIterator[str]:
    """Its URL. Without arguments: the GPUs above, no cluster. `bookings` and `more`: of the configuration, which
    is the cluster's if `bookings` is None."""
    inventory = folder / "gpus.yaml"
    inventory.write_text(GPUS)
    what = arguments or ("--inventory", str(inventory))
    if bookings is not None:
        what = (*what, "--config", config_file(folder, CONFIGURATION.format(bookings=bookings, more=more)))
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "carrel", "booking", "--port", "0"),
        *("--database", f"sqlite:///{folder / 'bookings.db'}"),
        *((sign_in,) if sign_in else ()),
        *what,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **secrets},
    )
    try:
        yield await _wait_url(running)
    finally:
        running.terminate()
        async with asyncio.timeout(LIMIT_S):
            _, rest = await running.communicate()
    assert running.returncode == 0, f"SIGTERM did not end it cleanly:\n{rest.decode()}"
    assert b"shutdown exceeded" not in rest, "a live map kept the process from stopping"


async def _wait_url(running: asyncio.subprocess.Process) -> str:
    assert running.stderr is not None
    said = ""
    async with asyncio.timeout(LIMIT_S):
        while line := (await running.stderr.readline()).decode():
            said += line
            if found := re.search(r"listening url=(\S+)", line):
                return found[1]
    raise AssertionError(f"it ended before it listened:\n{said}")


@contextlib.asynccontextmanager
async def signed_in(browser: Browser, url: str, who: str, role: str = "member", **options: Any) -> AsyncIterator[Page]:
    """`options` are those of a browser context: screen size, theme, whether scripts run."""
    # Without animations, so that nothing is seen half-way.
    usual: dict[str, Any] = {"base_url": url, "locale": "en-GB", "reduced_motion": "reduce"}
    context = await browser.new_context(**{**usual, **options})
    context.set_default_timeout(LIMIT_S * 1000)
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
    await page.goto("/sign-in")
    await page.get_by_label("E-mail address").fill(f"{who}@lab.example")
    await page.get_by_label("Role").select_option(role)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(re.compile(r"/$"))
    try:
        yield page
    finally:
        await context.close()
    assert not errors, errors
