"""The map updates when a pod starts, without a reload."""

import contextlib
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from carrel.bookings.pages.map_page import PER_PERSON
from carrel.dialects.booking_objects import BOOKINGS
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import NODES
from kubernetes_in_memory.http_server import serve
from tests.browser.service import a_service, signed_in
from tests.kit.gpus import a_node
from tests.kit.lab import a_lab

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_gpu_fills_when_a_pod_starts_and_shows_its_person(browser: Browser, tmp_path: Path) -> None:
    async with (
        a_lab([a_node("n1", gpus=2)], in_real_time=True) as lab,
        serve(lab.api) as api,
        a_service(tmp_path, "--server", api.url) as url,
        signed_in(browser, url, "ada") as page,
        lab.replica() as scheduler,
    ):
        await page.goto("/map")
        shares = page.locator("#gpu-GPU-n1-0 .share")
        await expect(page.locator(".gpu-link")).to_have_count(2)
        await expect(shares).to_have_count(0)
        await expect(page.locator(".figure").first).to_have_text("2 of 2")
        await page.locator("#gpu-GPU-n1-0").focus()

        await lab.book("ada@lab.example", gpus=1)
        told = {"carrel.dev/tier": "opportunistic", "carrel.dev/user": "ada@lab.example"}
        pod = await lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"}, annotations=told)
        assert await scheduler.bind(pod, "n1") is None

        await expect(shares).to_have_count(1)
        await expect(page.locator("#gpu-GPU-n1-0 .share.booked")).to_have_count(1)
        await expect(page.locator(".figure").first).to_have_text("1 of 2")
        await expect(page.locator("#gpu-GPU-n1-0")).to_be_focused()
        await page.locator("#gpu-GPU-n1-0").click()
        pods = page.get_by_role("region", name="Pods on this GPU")
        await expect(pods).to_contain_text("lab/train")
        await expect(pods).to_contain_text("ada@lab.example")
        await expect(pods).to_contain_text("covered by a booking of 1 GPU until")

        second = await lab.pod("eval", limits={"aliyun.com/gpu-mem": "1000"})
        assert await scheduler.bind(second, "n1") is None
        await expect(pods).to_contain_text("lab/eval")
        await page.goto("/")
        await expect(page.get_by_role("region", name="Your pods").first).to_contain_text("GPU 0 of n1")


async def test_a_cordoned_node_has_no_free_gpus_and_every_page_says_why(browser: Browser, tmp_path: Path) -> None:
    async with (
        a_lab([a_node("dgx-1", gpus=2), a_node("dgx-2", gpus=1)], in_real_time=True) as lab,
        serve(lab.api) as api,
        a_service(tmp_path, "--server", api.url) as url,
        signed_in(browser, url, "ada") as page,
    ):
        await page.goto("/map")
        await expect(page.locator(".figure").first).to_have_text("3 of 3")

        await lab.client.patch(NODES, "dgx-1", MergePatch({"spec": {"unschedulable": True}}))

        await expect(page.locator(".figure").first).to_have_text("1 of 3, 2 out of use")
        await expect(page.get_by_text("Takes no new pods: cordoned (kubectl uncordon dgx-1)")).to_have_count(1)
        for address in ("/", "/timeline"):
            await page.goto(address)
            words = page.get_by_text("2 of 3 are out of use: dgx-1 is cordoned (kubectl uncordon dgx-1)")
            await expect(words).to_have_count(1)
        await lab.client.patch(NODES, "dgx-1", MergePatch({"spec": {"unschedulable": False}}))
        await page.goto("/map")
        await expect(page.locator(".figure").first).to_have_text("3 of 3")


async def test_the_map_shows_at_once_that_a_booking_was_cancelled(browser: Browser, tmp_path: Path) -> None:
    async with (
        a_lab([a_node("n1", gpus=1)], in_real_time=True) as lab,
        serve(lab.api) as api,
        a_service(tmp_path, "--server", api.url) as url,
        signed_in(browser, url, "ada") as page,
    ):
        booking = await lab.book("ada@lab.example", gpus=1)
        async with lab.replica() as scheduler:
            told = {"carrel.dev/tier": "opportunistic", "carrel.dev/user": "ada@lab.example"}
            pod = await lab.pod("train", limits={"nvidia.com/gpu": "1"}, annotations=told)
            assert await scheduler.bind(pod, "n1") is None
        await page.goto("/map")
        await expect(page.locator("#gpu-GPU-n1-0 .share.booked")).to_have_count(1)

        await lab.client.delete(BOOKINGS, booking["metadata"]["name"])

        await expect(page.locator("#gpu-GPU-n1-0 .share.opportunistic")).to_have_count(1)


async def test_the_service_stops_while_a_live_map_is_open(browser: Browser, tmp_path: Path) -> None:
    async with a_lab([a_node("n1")], in_real_time=True) as lab, serve(lab.api) as api:
        service = contextlib.AsyncExitStack()
        url = await service.enter_async_context(a_service(tmp_path, "--server", api.url))
        async with signed_in(browser, url, "ada") as page:
            async with page.expect_response("**/map/stream*"):
                await page.goto("/map")

            await service.aclose()

            await expect(page.locator("#live")).to_have_text("No connection, trying again")


async def test_the_oldest_of_many_windows_stops_and_says_so(browser: Browser, tmp_path: Path) -> None:
    """It does not connect again: two windows would displace each other for ever."""
    async with (
        a_lab([a_node("n1")], in_real_time=True) as lab,
        serve(lab.api) as api,
        a_service(tmp_path, "--server", api.url) as url,
        signed_in(browser, url, "ada") as page,
    ):
        windows = [page, *[await page.context.new_page() for _ in range(PER_PERSON)]]
        for window in windows:
            async with window.expect_response("**/map/stream*"):
                await window.goto(f"{url}/map")

        await expect(page.locator("#live")).to_have_text(
            "Not live: the map is open in other windows. Reload to follow it here."
        )
        for window in windows[1:]:
            await expect(window.locator("#live")).to_have_text("Live")
