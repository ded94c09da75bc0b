"""The other components of the demo: booking service, webhook and controller, the real commands as processes.

Each has the token of its own ServiceAccount, so that the webhook can tell Carrel's own writes from those of users.
Their data and their logs are in a folder that is deleted when the demo ends.
"""

import asyncio
import ctypes
import itertools
import os
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import aiohttp
import yaml

from carrel.dialects import maia
from carrel.kubernetes.transport import ApiRequest, ResponseLike, Transport
from carrel.leases.cluster_state import NAMESPACE, utc_now
from carrel.ledger.gpus import Node
from kubernetes_in_memory.auth import UserInfo, service_account

COMPONENTS = ("extender", "booking", "webhook", "controller")
START_S = 120.0
STOP_S = 20.0
ADMIN = "admin@lab.example"
SOON = timedelta(seconds=5)
"""When a booking begins that is to begin at once: not in the past when it arrives at the booking service."""
TRIES = 3
"""Of a booking that is refused."""
PR_SET_PDEATHSIG = 1
"""An option of Linux' prctl: which signal a process gets when its parent ends."""


class ComponentNotStarted(Exception):
    """The message is the component's log."""


@dataclass(frozen=True, slots=True)
class ComponentTokens:
    """A token for each component."""

    tokens: Mapping[str, str] = field(default_factory=lambda: {name: secrets.token_urlsafe() for name in COMPONENTS})

    def users(self) -> dict[str, UserInfo]:
        return {token: service_account(NAMESPACE, f"carrel-{name}") for name, token in self.tokens.items()}

    def transport(self, component: str, api: Transport) -> Transport:
        """For a component that runs in this process."""
        return WithToken(api, self.tokens[component])


@dataclass(frozen=True, slots=True)
class ComponentUrls:
    booking: str
    webhook: str
    maia_token: str = field(repr=False)


@asynccontextmanager
async def running_components(api_url: str, tokens: ComponentTokens) -> AsyncIterator[ComponentUrls]:
    """The processes run while the block does."""
    maia_token = secrets.token_urlsafe()
    async with AsyncExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="carrel-demo-")))
        starter = ComponentStarter(folder, api_url, tokens)
        database = f"sqlite:///{folder}/bookings.db"
        booking = await closing.enter_async_context(
            starter.running("booking", maia_token, "--dev", "--platform-admin", ADMIN, "--database", database)
        )
        # A pod that finds no free GPU waits instead of running without one: the demo shows why pods wait.
        waits = ("--when-full", "wait", "--leave-after", "0")
        webhook, _ = await asyncio.gather(
            closing.enter_async_context(starter.running("webhook", maia_token, *waits)),
            closing.enter_async_context(starter.running("controller", maia_token)),
        )
        yield ComponentUrls(booking, webhook, maia_token)


@dataclass(frozen=True, slots=True)
class DemoBooking:
    person: str
    model: str
    lasts: timedelta
    begins_in: timedelta = timedelta()

    def enquiry(self, token: str, now: datetime) -> maia.Enquiry:
        start = now.replace(microsecond=0) + SOON + self.begins_in
        return maia.Enquiry(self.person, "", token, maia.Wish(self.model, start, start + self.lasts))


def bookings_of(people: Sequence[str], nodes: Sequence[Node]) -> list[DemoBooking]:
    """One for each, each of another model. The last one begins in two days, the others begin at once."""
    models = sorted({gpu.model for node in nodes for gpu in node.gpus if not gpu.unusable})
    if not models:
        return []
    lasts = [timedelta(days=3 + 2 * number) for number in range(len(people))]
    begins_in = [timedelta()] * (len(people) - 1) + [timedelta(days=2)]
    return [DemoBooking(*each) for each in zip(people, itertools.cycle(models), lasts, begins_in, strict=False)]


async def make_bookings(urls: ComponentUrls, bookings: Iterable[DemoBooking]) -> None:
    """One that is refused is left out: a cluster with one GPU has no room for all of them."""
    async with aiohttp.ClientSession() as session:
        for booking in bookings:
            tries = 0
            while tries < TRIES and not await _is_made(session, urls, booking):
                tries += 1


async def _is_made(session: aiohttp.ClientSession, urls: ComponentUrls, booking: DemoBooking) -> bool:
    """On a slow machine its start may have passed when it arrives, or the booking service may not know the GPUs yet."""
    while True:
        enquiry = maia.write_enquiry(booking.enquiry(urls.maia_token, utc_now()))
        async with session.post(f"{urls.booking}/maia-api/gpu-schedulability/", json=enquiry) as answer:
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                return answer.ok
        await asyncio.sleep(0.5)


@dataclass(frozen=True, slots=True)
class ComponentStarter:
    """Starts the real commands."""

    folder: Path
    """For the logs and kubeconfigs."""
    api_url: str
    tokens: ComponentTokens
    seal_key: str = field(default_factory=secrets.token_urlsafe, repr=False)
    """The same for all components."""

    @asynccontextmanager
    async def running(self, name: str, maia_token: str, *options: str) -> AsyncIterator[str]:
        """The URL at which the component listens."""
        log, kubeconfig = self.folder / f"{name}.log", self.folder / f"{name}.kubeconfig"
        kubeconfig.write_text(self.kubeconfig(self.tokens.tokens[name]))
        secret = {"CARREL_MAIA_TOKEN": maia_token, "CARREL_API_TOKEN": maia_token}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "carrel", name, "--port", "0", "--kubeconfig", str(kubeconfig), *options),
                env={**os.environ, **secret, "CARREL_SEAL_KEY": self.seal_key},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C goes to the demo, which then ends this process
                preexec_fn=end_with_parent,
            )
        try:
            yield await _address(name, process, log)
        finally:
            await end_process(process)

    def kubeconfig(self, token: str) -> str:
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
class WithToken:
    """A transport that adds a bearer token to every call."""

    api: Transport
    token: str

    async def send(self, request: ApiRequest) -> ResponseLike:
        headers = {**request.headers, "authorization": f"Bearer {self.token}"}
        return await self.api.send(replace(request, headers=headers))

    async def aclose(self) -> None:
        await self.api.aclose()


def end_with_parent() -> None:
    """The process ends even if the demo is killed. Only Linux can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


async def _address(name: str, process: asyncio.subprocess.Process, log: Path) -> str:
    """The URL, from the component's log."""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while process.returncode is None:
                if found := re.search(r"listening url=(\S+)", _text(log)):
                    return found[1]
                await asyncio.sleep(0.1)
    raise ComponentNotStarted(f"carrel {name} did not start:\n{_text(log)}")


def _text(log: Path) -> str:
    return log.read_text().strip()


async def end_process(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
