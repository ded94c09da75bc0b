"""The other components of the demo: booking service, webhook and controller, the real commands as processes.

Each has the token of its own ServiceAccount, so that the webhook can tell Carrel's own writes from those of users.
Their logs and kubeconfigs are in a folder that is deleted when the demo ends.
"""

import asyncio
import ctypes
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from carrel.cluster.options import NAMESPACE
from carrel.dialects.kai_reservation import KAI_0_17
from carrel.kubernetes.transport import ApiRequest, ResponseLike, Transport
from kubernetes_in_memory.auth import UserInfo, service_account

COMPONENTS = ("extender", "booking", "webhook", "controller", "agent")
RESERVATION = "reservation"
"""The program in reservation pods, which has an account in their namespace."""
START_S = 120.0
STOP_S = 20.0
ADMIN = "admin@lab.example"
CONFIGURATION = f"""\
# The configuration of the demo's cluster: `carrel config show` explains each field.
tiers:
  whenFull: wait        # a pod that finds no free GPU waits instead of running without one, and the demo shows why
bookings:
  rules:
    settlingTime: 0s    # nobody waits ten seconds for the first thing that the demo shows
  roles:
    platformAdmins: [{ADMIN}]
"""
PR_SET_PDEATHSIG = 1
"""An option of Linux' prctl: which signal a process gets when its parent ends."""


class ComponentNotStarted(Exception):
    """The message is the component's log."""


@dataclass(frozen=True, slots=True)
class ComponentTokens:
    """A token for each component."""

    tokens: Mapping[str, str] = field(
        default_factory=lambda: {name: secrets.token_urlsafe() for name in (*COMPONENTS, RESERVATION)}
    )

    def users(self) -> dict[str, UserInfo]:
        users = {self.tokens[name]: service_account(NAMESPACE, f"carrel-{name}") for name in COMPONENTS}
        return {**users, self.tokens[RESERVATION]: service_account(KAI_0_17.namespace, KAI_0_17.namespace)}

    def transport(self, component: str, api: Transport) -> Transport:
        """For a component that runs in this process."""
        return WithToken(api, self.tokens[component])


@asynccontextmanager
async def running_components(starter: "ComponentStarter", database: str) -> AsyncIterator[tuple[str, str]]:
    """The URLs of booking service and webhook. The processes run while the block does. `database`: with the bookings
    that were made before."""
    maia_token = secrets.token_urlsafe()
    service = ("--dev", "--database", database)
    async with AsyncExitStack() as closing:
        booking, webhook, _ = await asyncio.gather(
            closing.enter_async_context(starter.running("booking", maia_token, *service)),
            closing.enter_async_context(starter.running("webhook", maia_token)),
            closing.enter_async_context(starter.running("controller", maia_token)),
        )
        yield booking, webhook


@dataclass(frozen=True, slots=True)
class ComponentStarter:
    """Starts the real commands."""

    folder: Path
    """For the logs and kubeconfigs."""
    api_url: str
    tokens: ComponentTokens
    seal_key: str = field(default_factory=secrets.token_urlsafe, repr=False)
    """All components have this one."""

    @asynccontextmanager
    async def running(self, name: str, maia_token: str, *options: str) -> AsyncIterator[str]:
        """The URL at which the component listens."""
        log, kubeconfig = self.folder / f"{name}.log", self.folder / f"{name}.kubeconfig"
        kubeconfig.write_text(self.kubeconfig(self.tokens.tokens[name]))
        secret = {"CARREL_MAIA_TOKEN": maia_token, "CARREL_API_TOKEN": maia_token}
        port = str(_free_port())  # it stays, also if the component starts again for a change of the configuration
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "carrel", name, "--port", port, "--kubeconfig", str(kubeconfig), *options),
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


def _free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        port: int = there.getsockname()[1]
        return port


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
