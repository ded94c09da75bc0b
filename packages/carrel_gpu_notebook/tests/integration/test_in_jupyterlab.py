"""The wheel, installed by pip and by nothing else: a real JupyterLab shows notices in a real Chromium, and a kernel
prints them."""

import asyncio
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from jupyter_client.manager import AsyncKernelManager
from playwright.async_api import Browser, Page, expect

from carrel_gpu_notebook import __version__
from tests.browser.service import a_browser
from tests.kit.eventually import LIMIT_S
from tests.kit.ports import free_ports

pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKAGE = Path(__file__).parents[2]
BOOKING = "https://gpus.lab.example"
REVOKED = (
    "your GPU is needed for a booked pod: this pod ends at Tue 17 Nov 07:22 UTC and is created again without a GPU; "
    "save your work now"
)
LOST = "this pod lost its GPU at Tue 17 Nov 07:22 UTC for a booked pod; it runs without a GPU now"


@dataclass
class Pod:
    """An environment as that of a notebook's image, and the folder that Carrel mounts."""

    folder: Path
    wheel: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the person who runs the tests. JupyterLab itself is that of these tests."""
        kept = {key: os.environ[key] for key in ("LANG", "LC_ALL") if key in os.environ}
        return {
            **kept,
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "JUPYTERLAB_DIR": f"{sys.prefix}/share/jupyter/lab",
            "CARREL_NOTICE_FOLDER": str(self.notices),
            "CARREL_URL": BOOKING,
        }

    @property
    def notices(self) -> Path:
        return self.folder / "notices"

    def runs(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return what a command of Python has done there."""
        command = [str(self.python), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        )

    def tell(self, notice: str, **times: datetime) -> None:
        """As the kubelet does when the pod's annotations change."""
        for name in ("leave-by", "terminate-at"):
            at = times.get(name.replace("-", "_"))
            (self.notices / name).write_text(at.strftime("%Y-%m-%dT%H:%M:%SZ") if at else "")
        (self.notices / "notice").write_text(notice)


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Pod:
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "notices").mkdir()

    def run(*command: str | Path) -> None:
        done = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    run("pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder, PACKAGE)
    (wheel,) = folder.glob("*.whl")
    run("venv", "--without-pip", folder / "venv")
    made = Pod(folder, wheel)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    here = next(place for place in sys.path if place.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(here)
    run("pip", "--python", made.python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(pod: Pod) -> AsyncIterator[str]:
    """Return the address of a JupyterLab that was started as in an image."""
    (port,) = free_ports(1)
    log = pod.folder / "lab.log"
    with log.open("wb") as output:
        running = await asyncio.create_subprocess_exec(
            *(pod.python, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"),
            *("--IdentityProvider.token=secret", "--ServerApp.base_url=/user/ada"),
            cwd=pod.folder,
            env=pod.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    url = f"http://localhost:{port}/user/ada"
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
            while not await _answers(session, url):
                assert running.returncode is None, log.read_text()
                await asyncio.sleep(0.2)
        yield url
    finally:
        running.terminate()
        await running.wait()


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/api") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with a_browser() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(lab: str, browser: Browser) -> AsyncIterator[Page]:
    """Return JupyterLab, as its person sees it."""
    context = await browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(LIMIT_S * 1000)
    page = await context.new_page()
    await page.goto(f"{lab}/lab?token=secret")
    await page.get_by_role("menubar").first.wait_for()
    yield page
    await context.close()


async def test_a_revocation_is_shown_with_a_countdown_and_a_way_to_book(pod: Pod, page: Page) -> None:
    pod.tell(REVOKED, leave_by=datetime.now(UTC) + timedelta(hours=1))

    shown = page.get_by_role("alert").filter(has_text="Your GPU is needed for a booked pod")
    await expect(shown).to_contain_text("is created again without a GPU; save your work now")
    await expect(shown).to_contain_text(re.compile(r"^59:\d\d"))
    before = await shown.inner_text()
    await expect(shown).not_to_have_text(before)  # it counts down

    await page.context.route(f"{BOOKING}/**", lambda route: route.fulfill(body="the booking pages"))
    async with page.context.expect_page() as opened:
        await shown.get_by_role("button", name="Book").click()
    await (await opened.value).wait_for_url(f"{BOOKING}/timeline")
    await (await opened.value).close()


async def test_a_notice_goes_when_it_is_no_longer_true(pod: Pod, page: Page) -> None:
    pod.tell(REVOKED.replace("Tue 17", "Wed 18"), leave_by=datetime.now(UTC) + timedelta(hours=1))
    shown = page.get_by_role("alert").filter(has_text="Wed 18 Nov")
    await shown.wait_for()

    pod.tell("")

    await expect(shown).to_be_hidden()


async def test_what_has_happened_is_told_once(pod: Pod, page: Page) -> None:
    pod.tell(LOST)
    shown = page.get_by_role("alert").filter(has_text="This pod lost its GPU")
    await shown.wait_for()

    async with page.expect_response("**/carrel/notice"):
        await page.reload()
    await page.get_by_role("menubar").first.wait_for()
    pod.tell(REVOKED, leave_by=datetime.now(UTC) + timedelta(hours=1))
    await page.get_by_role("alert").filter(has_text="Your GPU is needed").wait_for()

    await expect(shown).to_be_hidden()


async def test_a_notice_that_was_closed_stays_closed(pod: Pod, page: Page) -> None:
    pod.tell("your booking ends: this pod ends then", terminate_at=datetime.now(UTC) + timedelta(hours=1))
    shown = page.get_by_role("alert").filter(has_text="Your booking ends")
    await expect(shown.get_by_role("button", name="Extend")).to_be_visible()

    box = page.locator(".Toastify__toast").filter(has=shown)
    await box.get_by_role("button").filter(has_not_text="Extend").click()
    await expect(shown).to_be_hidden()
    for _ in range(2):
        async with page.expect_response("**/carrel/notice"):
            pass

    await expect(shown).to_be_hidden()


async def test_a_stranger_is_not_told(lab: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{lab}/carrel/notice") as answer:
        assert answer.status in (302, 403)


async def test_a_kernel_prints_each_notice_with_the_next_cell(pod: Pod) -> None:
    pod.tell(LOST)
    kernel = AsyncKernelManager()
    assert kernel.kernel_spec is not None
    kernel.kernel_spec.argv[0] = str(pod.python)
    await kernel.start_kernel(env=pod.environment, cwd=str(pod.folder))
    client = kernel.client()
    client.start_channels()
    printed: list[str] = []
    try:
        await client.wait_for_ready(timeout=LIMIT_S)
        for cell in ("1 + 1", "2 + 2"):
            cells: list[str] = []
            await client.execute_interactive(
                cell,
                timeout=LIMIT_S,
                output_hook=lambda message, said=cells: said.append(message["content"].get("text", "")),
            )
            printed.append("".join(cells))
    finally:
        client.stop_channels()
        await kernel.shutdown_kernel(now=True)

    assert printed == [f"Carrel: {LOST[0].upper()}{LOST[1:]}. Book: {BOOKING}/timeline\n", ""]


async def test_the_wheel_needs_jupyter_server_and_nothing_else(pod: Pod) -> None:
    archive = zipfile.ZipFile(pod.wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    text = archive.read(metadata).decode()

    assert re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE) == ["jupyter-server>=2"]
    assert f"\nVersion: {__version__}\n" in text


async def test_jupyterlab_lists_the_extension_as_one_that_works(pod: Pod) -> None:
    listing = "from jupyterlab.labextensions import main; main(['list'])"
    done = pod.runs("-c", listing)
    said = re.sub(r"\x1b\[\d*m", "", done.stdout + done.stderr)

    assert re.search(rf"carrel-gpu-notebook v{__version__} enabled OK \(python, carrel-gpu-notebook\)", said), said
