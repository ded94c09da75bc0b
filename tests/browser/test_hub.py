"""A person at a JupyterHub: the spawn page, a notebook server, and the same address after its GPU was taken back."""

import re

import pytest
from playwright.async_api import Browser, expect

from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.jupyterhub.hub import a_startable, running_hub
from tests.kit.jupyterhub.notebook_kubelets import POD_FILE

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADA, BOB = "ada@lab.example", "bob@lab.example"


async def test_a_notebook_stays_where_it_is_when_it_loses_its_gpu(browser: Browser) -> None:
    # The server of these tests has no user interface: the person opens a file that says in which pod it is.
    async with running_hub([a_node("a", gpus=1, model="NVIDIA-A")], default_url=f"/files/{POD_FILE}") as bed:
        bed.kubelets.with_jupyter.add(ADA)
        notices = ["Your booking of last week has ended."]
        bed.startable.update(a_startable({"NVIDIA-A": 1}, notices=notices))
        context = await browser.new_context()
        context.set_default_timeout(LIMIT_S * 1000)
        page = await context.new_page()
        await page.goto(f"{bed.url}/hub/spawn")
        await page.get_by_label("Username").fill(ADA)
        await page.get_by_label("Password").fill("any")
        await page.get_by_role("button", name="Sign in").click()

        await expect(page.get_by_text(notices[0])).to_be_visible()
        await expect(page.get_by_role("radio", name="No GPU")).to_be_checked()
        await page.get_by_text("Free now: 1 A (may be taken back)").click()
        await page.get_by_role("button", name="Start").click()
        await page.wait_for_url(re.compile(rf"/user/[^/]+/files/{POD_FILE}"))
        first = await bed.pod(ADA)
        await expect(page.locator("body")).to_have_text(first["metadata"]["uid"])
        await bed.book(BOB, "NVIDIA-A")
        await bed.start_and_wait(BOB, "gpu-nvidia-a-1")
        await bed.answers(ADA)

        await page.reload()
        successor = await bed.pod(ADA)
        await expect(page.locator("body")).to_have_text(successor["metadata"]["uid"])
        assert successor["metadata"]["uid"] != first["metadata"]["uid"]
        assert "carrel.dev/handed-over" in successor["metadata"]["annotations"]
        await context.close()
