"""The booking pages as a service of a real JupyterHub, configured as docs/sign-in.md says: its menu, its login."""

import asyncio
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from carrel.demo.component_processes import end_process, end_with_parent
from tests.browser.service import GPUS, a_service
from tests.kit.eventually import LIMIT_S
from tests.kit.ports import free_ports
from tests.kit.programs import http_proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

BASE = "/services/carrel"
MANUAL = Path(__file__).parents[2] / "docs" / "sign-in.md"
CONFIG = """
c = get_config()
c.JupyterHub.bind_url = "{url}"
c.JupyterHub.hub_bind_url = "{hub}"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
c.ConfigurableHTTPProxy.command = {proxy}
c.ConfigurableHTTPProxy.api_url = "{proxy_api}"
"""


@asynccontextmanager
async def a_hub_with_pages(folder: Path) -> AsyncIterator[str]:
    """Its URL."""
    url, proxy_api, hub, pages = (f"http://127.0.0.1:{port}" for port in free_ports(4))
    (documented,) = re.findall(r"```\n(c\.JupyterHub\.services.*?)```", MANUAL.read_text(), re.DOTALL)
    secret, config = secrets.token_hex(), folder / "jupyterhub_config.py"
    as_here = documented.replace("http://carrel-booking.carrel:39997", pages).replace('"…"', f'"{secret}"')
    config.write_text(CONFIG.format(url=url, hub=hub, proxy_api=proxy_api, proxy=http_proxy()) + as_here)
    outside = {key: value for key, value in os.environ.items() if not key.startswith("JUPYTER")}
    with (folder / "hub.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jupyterhub", "--config", str(config)),
            cwd=folder,
            env=outside,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    (folder / "gpus.yaml").write_text(GPUS)
    port = pages.rpartition(":")[2]
    options = ("--port", port, "--inventory", str(folder / "gpus.yaml"))
    at_hub = f"signIn: {{hub: {{url: '{url}', apiUrl: '{hub}/hub/api'}}}}"
    where = f"publicUrl: '{url}{BASE}'\n  {at_hub}"
    try:
        people = "hubs: {usernameDomain: lab.example}"
        known = {"CARREL_HUB_CLIENT_SECRET": secret}
        async with a_service(folder, *options, sign_in="", bookings=where, more=people, **known):
            await _wait_up(f"{url}/hub/api/")
            yield url
    finally:
        await end_process(process)


async def _wait_up(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(10 * LIMIT_S):
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise AssertionError("the hub did not start")


async def test_a_person_books_from_the_menu_of_the_hub(browser: Browser, tmp_path: Path) -> None:
    async with a_hub_with_pages(tmp_path) as url:
        context = await browser.new_context(locale="en-GB", reduced_motion="reduce")
        context.set_default_timeout(LIMIT_S * 1000)
        page = await context.new_page()
        await page.goto(f"{url}/hub/home")
        await page.get_by_label("Username").fill("ada")
        await page.get_by_label("Password").fill("any")
        await page.get_by_role("button", name="Sign in").click()

        # Who has signed in at the hub needs no other login.
        await page.get_by_role("button", name="Services").click()
        await page.get_by_role("link", name="carrel").click()
        await expect(page).to_have_url(f"{url}{BASE}/")
        await page.get_by_role("link", name="Timeline", exact=True).first.click()
        await page.get_by_label("Model").select_option("NVIDIA-RTX-A6000")
        await page.get_by_role("button", name="Book", exact=True).click()
        await expect(page).to_have_url(re.compile(f"^{url}{BASE}/bookings/"))
        await expect(page.get_by_title("ada@lab.example")).to_have_text("ada")

        # Signed out there, the hub is asked again: the person is still signed in at it.
        await page.get_by_role("button", name="Sign out").click()
        await page.goto(f"{url}{BASE}/")
        await expect(page.get_by_title("ada@lab.example")).to_be_visible()
        await context.close()
