"""The other doors of the demo: booking service, webhook and controller, each the real one in a process of its own.

Each has the token of its own ServiceAccount, so that the webhook knows Carrel's own writes from other people's. What
they keep and what they say is in a folder that goes with the demo.
"""

import asyncio
import ctypes
import os
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import aiohttp
import yaml

from carrel.dialects import maia
from carrel.kubernetes.transport import ApiRequest, ResponseLike, Transport
from carrel.leases.cluster_state import NAMESPACE
from carrel.ledger.gpus import Node
from kubernetes_in_memory.auth import User, service_account

DOORS = ("extender", "booking", "webhook", "controller")
START_S = 120.0
STOP_S = 20.0
ADMIN = "admin@lab.example"
PR_SET_PDEATHSIG = 1
"""Of Linux: which signal a process gets when the one that started it is gone."""


class NotOpened(Exception):
    """A door did not start. The message is what it said last."""


@dataclass(frozen=True, slots=True)
class Badges:
    """A token for each door."""

    tokens: Mapping[str, str] = field(default_factory=lambda: {door: secrets.token_urlsafe() for door in DOORS})

    def users(self) -> dict[str, User]:
        return {token: service_account(NAMESPACE, f"carrel-{door}") for door, token in self.tokens.items()}

    def worn(self, door: str, api: Transport) -> Transport:
        """Calls of that door, in this process."""
        return _Worn(api, self.tokens[door])


@dataclass(frozen=True, slots=True)
class Opened:
    booking: str
    """Where the pages are."""
    webhook: str
    maia_token: str = field(repr=False)


@asynccontextmanager
async def staff(api_url: str, badges: Badges) -> AsyncIterator[Opened]:
    """All doors are open while the block runs."""
    token = secrets.token_urlsafe()
    async with AsyncExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="carrel-demo-")))
        place = _Place(folder, api_url, badges)
        database = f"sqlite:///{folder}/bookings.db"
        booking = await closing.enter_async_context(
            place.door("booking", "--dev", "--platform-admin", ADMIN, "--database", database, maia_token=token)
        )
        asked = ("--api-url", f"{booking}/api/v1/booking-status")
        # Whoever finds no card waits: the demo is about why.
        waits = ("--gpu-stats-url", "", "--when-full", "wait", "--leave-after", "0")
        webhook, _ = await asyncio.gather(
            closing.enter_async_context(place.door("webhook", *asked, *waits, maia_token=token)),
            closing.enter_async_context(place.door("controller", *asked, maia_token=token)),
        )
        yield Opened(booking, webhook, token)


async def make_bookings(opened: Opened, owners: Sequence[str], nodes: Sequence[Node], now: datetime) -> None:
    """Each has a model of their own: the last one's booking is planned, the others' begin at once."""
    models = sorted({gpu.model for node in nodes for gpu in node.gpus if not gpu.unusable})
    if not models:
        return
    at_once = now.replace(microsecond=0) + timedelta(seconds=5)  # whole seconds, and not in the past when it arrives
    async with aiohttp.ClientSession() as session:
        for number, owner in enumerate(owners):
            start = at_once + timedelta(days=2) * (number == len(owners) - 1)
            wish = maia.Wish(models[number % len(models)], start, start + timedelta(days=3 + 2 * number))
            enquiry = maia.write_enquiry(maia.Enquiry(owner, "", opened.maia_token, wish))
            async with session.post(f"{opened.booking}/maia-api/gpu-schedulability/", json=enquiry):
                pass  # a cluster of one card cannot take them all


@dataclass(frozen=True, slots=True)
class _Place:
    folder: Path
    api_url: str
    badges: Badges

    @asynccontextmanager
    async def door(self, name: str, *options: str, maia_token: str = "") -> AsyncIterator[str]:
        """The address at which it listens."""
        log, kubeconfig = self.folder / f"{name}.log", self.folder / f"{name}.kubeconfig"
        kubeconfig.write_text(self._kubeconfig(self.badges.tokens[name]))
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "carrel", name, "--port", "0", "--kubeconfig", str(kubeconfig), *options),
                env={**os.environ, "CARREL_MAIA_TOKEN": maia_token, "CARREL_API_TOKEN": maia_token},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends this process in its turn
                preexec_fn=_go_with_the_demo,
            )
        try:
            yield await _address(name, process, log)
        finally:
            await _end(process)

    def _kubeconfig(self, token: str) -> str:
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "demo", "cluster": {"server": self.api_url}}],
                "users": [{"name": "demo", "user": {"token": token}}],
                "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
                "current-context": "demo",
            }
        )


@dataclass(frozen=True, slots=True)
class _Worn:
    api: Transport
    token: str

    async def send(self, request: ApiRequest) -> ResponseLike:
        headers = {**request.headers, "authorization": f"Bearer {self.token}"}
        return await self.api.send(replace(request, headers=headers))

    async def aclose(self) -> None:
        await self.api.aclose()


def _go_with_the_demo() -> None:
    """Also if the demo is killed: nobody else would end this process. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


async def _address(name: str, process: asyncio.subprocess.Process, log: Path) -> str:
    """From what it says when it listens."""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                if found := re.search(r"listening url=(\S+)", _said(log)):
                    return found[1]
                await asyncio.sleep(0.1)
    raise NotOpened(f"carrel {name} did not start:\n{_said(log)}")


def _said(log: Path) -> str:
    return log.read_text().strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
