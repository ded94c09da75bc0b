"""A real JupyterHub in front of Carrel on the embedded API: hub, proxy and notebook servers are processes.

`running_hub` starts all of it: the embedded API over HTTP, Carrel's webhook and controller as processes, the extender
with a simulated kube-scheduler, kubelets that start notebook servers, a booking service that says what a test wants,
and the hub. Times are real, so every wait has a generous limit.
"""

import asyncio
import json
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from carrel.cluster.options import utc_now
from carrel.demo.component_processes import ComponentStarter, ComponentTokens, end_process, end_with_parent
from carrel.demo.system import Demo, WebhookAddress, install
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import read_lease
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Json, NotFound, Selection
from carrel.kubernetes.objects.resources import LEASES, NAMESPACES, PODS
from carrel.ledger.gpus import Node
from carrel.parsing.time import seconds
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.auth import service_account
from kubernetes_in_memory.http_server import serve
from tests.kit.configuration import configure
from tests.kit.eventually import LIMIT_S
from tests.kit.jupyterhub.hub_files import HUB, NAMESPACE, HubAccess, write_hub_files
from tests.kit.jupyterhub.notebook_kubelets import USERNAME, NotebookKubelets
from tests.kit.programs import http_proxy

DOMAIN = "lab.example"
CONFIGURATION = f"""\
tiers: {{{{minimumTime: 0s, notebookGrace: 2s, {{tiers}}}}}}
hubs: {{{{accounts: ['{HUB}'], usernameDomain: {DOMAIN}}}}}
"""
"""Between the announcement that a notebook loses its GPU and its end: people need minutes, tests do not."""
"""A hub and its servers start slowly on a busy machine."""

T = TypeVar("T")


async def wait_for(what: str, ask: Callable[[], Awaitable[T]], logs: Callable[[], str] = str) -> T:
    """The first true answer."""
    give_up = time.monotonic() + LIMIT_S
    while True:
        answer = await ask()
        if answer:
            return answer
        assert time.monotonic() < give_up, f"{what} did not come true within {LIMIT_S:.0f} s\n{logs()}"
        await asyncio.sleep(0.3)


@dataclass
class HubBed:
    """A hub, and what a test needs to drive it."""

    url: str
    token: str = field(repr=False)
    client: Client
    carrel: Client
    """Writes as Carrel's controller: from others, the webhook takes off what only Carrel may write."""
    kubelets: NotebookKubelets
    folder: Path
    session: aiohttp.ClientSession
    startable: dict[str, Any]
    """What the booking service answers, as in docs/jupyterhub.md."""
    asked: list[str]
    """The users about whom it was asked."""
    restart: Callable[[], Awaitable[None]]
    """Kills the hub, not its proxy, and starts it again."""

    # --- the hub -----------------------------------------------------------------------------------------------------

    async def api(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """The status and the answer; 0 while the hub does not answer."""
        headers = {"Authorization": f"token {self.token}"}
        try:
            async with self.session.request(method, f"{self.url}/hub/api/{path}", headers=headers, **options) as answer:
                text = await answer.text()
                return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
        except aiohttp.ClientError:
            return 0, ""

    async def start(self, user: str, profile: str = "") -> None:
        """Asks the hub to start the server of a user. It may still be starting afterwards."""
        await self.api("POST", f"users/{user}")
        status, said = await self.api("POST", f"users/{user}/server", json={"profile": profile} if profile else {})
        assert status in (201, 202), said

    async def start_and_wait(self, user: str, profile: str = "") -> Json:
        """The pod of the server, once it answers through the proxy."""
        await self.start(user, profile)
        await self.answers(user)
        return await self.pod(user)

    async def stop(self, user: str) -> None:
        status, said = await self.api("DELETE", f"users/{user}/server")
        assert status in (202, 204), said

    async def stop_and_wait(self, user: str) -> None:
        await self.stop(user)
        await self.is_gone(user)

    async def is_gone(self, user: str) -> None:
        """The hub and the cluster have nothing of the user."""

        async def is_it() -> bool:
            return not await self.server(user) and not await self.pods(user)

        await self.wait_for(f"the server of {user} is gone", is_it)

    async def server(self, user: str) -> Json:
        """What the hub knows of the user's server; empty if it has none."""
        _, said = await self.api("GET", f"users/{user}")
        found: Json = said.get("servers", {}).get("", {}) if isinstance(said, dict) else {}
        return found

    async def is_ready(self, user: str) -> bool:
        return bool((await self.server(user)).get("ready"))

    async def progress(self, user: str) -> AsyncIterator[str]:
        """The messages of the page that people see while their server starts, as they come."""
        headers = {"Authorization": f"token {self.token}"}
        async with self.session.get(f"{self.url}/hub/api/users/{user}/server/progress", headers=headers) as answer:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))["message"]

    async def notebook(self, user: str, path: str = "api/status") -> int:
        """The status of an answer of the user's server, through the proxy."""
        headers = {"Authorization": f"token {self.token}"}
        try:
            async with self.session.get(f"{self.url}/user/{user}/{path}", headers=headers) as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def answers(self, user: str) -> None:
        async def does() -> bool:
            return await self.is_ready(user) and await self.notebook(user) == 200

        await self.wait_for(f"the server of {user} answers", does)

    async def wait_for(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        return await wait_for(what, ask, self.logs)

    # --- the cluster -------------------------------------------------------------------------------------------------

    async def pods(self, user: str) -> list[Json]:
        found = (await self.client.list(PODS, Selection(NAMESPACE))).items
        names = [each.metadata.name for each in found if each.metadata.annotations.get(USERNAME) == user]
        return [pod for pod in [await self._pod(name) for name in names] if pod]

    async def pod(self, user: str) -> Json:
        (found,) = await self.pods(user)
        return found

    async def _pod(self, name: str) -> Json:
        try:
            return await self.client.get(PODS, name, NAMESPACE)
        except NotFound:
            return {}

    async def book(self, user: str, model: str, gpus: int = 1) -> None:
        """A booking that runs now."""
        now = utc_now()
        times = {"start": seconds(now - timedelta(days=1)), "end": seconds(now + timedelta(days=1))}
        body = {
            "apiVersion": BOOKINGS.api_version,
            "kind": BOOKINGS.kind,
            "metadata": {"name": f"booking-{user.partition('@')[0]}"},
            "spec": {"user": user, "gpus": gpus, "model": model, **times},
        }
        await self.client.create(BOOKINGS, body)

    async def holders(self, node: str) -> set[str]:
        """The uids of the pods that hold GPUs of a node, by their Leases."""
        leases = (await self.client.list(LEASES, Selection("carrel"))).items
        records = [record for lease in leases if (record := read_lease(lease)) is not None]
        return {share.holder.uid for record in records if record.node == node for share in record.shares}

    def logs(self) -> str:
        files = [self.folder / "hub.log", *self.folder.glob("carrel/*.log"), *self.kubelets.folder.glob("*.log")]
        return "\n".join(f"--- {each.name}\n{each.read_text()[-6000:]}" for each in files if each.exists())


@asynccontextmanager
async def running_hub(
    nodes: Sequence[Node],
    *,
    tiers: str = "",
    **spawner: Any,
) -> AsyncIterator[HubBed]:
    """`tiers`: more fields of that section of the configuration. `spawner`: settings of the KubeSpawner."""
    tokens, address = ComponentTokens(), WebhookAddress()
    hub_token = secrets.token_urlsafe()
    users = {**tokens.users(), hub_token: service_account(NAMESPACE, "hub")}
    api = EmbeddedApi(Settings(tokens=users, service_address=address))
    async with AsyncExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="carrel-hub-")))
        await closing.enter_async_context(aclosing(api))
        served = await closing.enter_async_context(serve(api))
        admin = Client(api)
        await install(admin)
        await configure(admin, CONFIGURATION.format(tiers=tiers))
        await admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        demo = Demo(Client(tokens.transport("extender", api)), served.url)
        (folder / "notebooks").mkdir()
        by_name = spawner.get("internal_ssl", False)
        kubelets = NotebookKubelets(folder / "notebooks", admin, nodes, demo.carrel.pods, utc_now, by_name=by_name)
        closing.push_async_callback(kubelets.end_all)
        await kubelets.announce()
        tasks = await closing.enter_async_context(_background())
        tasks(demo.carrel.informers.run())
        await demo.carrel.informers.wait_synced()
        tasks(kubelets.run())
        tasks(demo.run())
        (folder / "carrel").mkdir()
        starter = ComponentStarter(folder / "carrel", served.url, tokens)
        address.url, _ = await asyncio.gather(
            closing.enter_async_context(starter.running("webhook", "unused")),
            closing.enter_async_context(starter.running("controller", "unused")),
        )
        answer: dict[str, Any] = {}
        asked: list[str] = []
        booking = await closing.enter_async_context(_booking_service(answer, asked, hub_token))
        hub = _HubProcess(folder, served.url, hub_token, booking, spawner)
        closing.push_async_callback(hub.end)
        await hub.start()
        session = await closing.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), cookie_jar=aiohttp.DummyCookieJar())
        )
        bed = HubBed(
            hub.url,
            hub.token,
            admin,
            Client(tokens.transport("controller", api)),
            kubelets,
            folder,
            session,
            answer,
            asked,
            hub.restart,
        )

        async def is_up() -> bool:
            return (await bed.api("GET", ""))[0] == 200

        await bed.wait_for("the hub answers", is_up)
        yield bed


@asynccontextmanager
async def _background() -> AsyncIterator[Callable[[Any], None]]:
    """Tasks that run until the block ends. An error in one of them fails the test."""
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Any]] = []
        try:
            yield lambda work: tasks.append(group.create_task(work))
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def _booking_service(answer: dict[str, Any], asked: list[str], token: str) -> AsyncIterator[str]:
    """Answers what the test has put into `answer`; nothing there: it is out of order."""

    async def startable(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401)
        asked.append(request.query["user"])
        return web.json_response(answer) if answer else web.Response(status=503)

    app = web.Application()
    app.router.add_get("/api/v1/startable", startable)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class _HubProcess:
    def __init__(self, folder: Path, api_url: str, hub_token: str, booking_url: str, spawner: Json) -> None:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(ComponentStarter(folder, api_url, ComponentTokens()).kubeconfig(hub_token))
        access = HubAccess(kubeconfig, hub_token, booking_url, http_proxy())
        self._files = write_hub_files(folder, access, 0, spawner)
        self.url, self.token = self._files.url, self._files.token
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        outside = {key: value for key, value in os.environ.items() if not key.startswith("JUPYTER")}
        with (self._folder / "hub.log").open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._files.command,
                cwd=self._folder,
                env={**outside, **self._files.variables},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    async def restart(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        await self.start()

    async def end(self) -> None:
        if self._process is not None:
            await end_process(self._process)


def a_startable(free: dict[str, int], **more: Any) -> dict[str, Any]:
    """What the booking service answers where these GPUs are free: model → number."""
    listed = [{"model": model, "gpus": gpus, "next_free": None} for model, gpus in free.items()]
    answer = {"user": "", "matches": True, "bookings": [], "free": listed, "book_url": "", "notices": []}
    return {**answer, "zone": "Europe/Stockholm", **more}


def a_booking(model: str, end: datetime, **more: Any) -> dict[str, Any]:
    start = seconds(end - timedelta(days=3))
    times = {"start": start, "end": seconds(end)}
    return {"id": "b1", "model": model, "gpus": 1, "used": 0, "group": "", "runs": True, **times, **more}
