"""`CarrelSpawner`: a KubeSpawner that knows that Carrel may take a notebook's GPU back.

- A pod that Carrel hands over to CPU counts as running for a bounded time; when its successor has an address, the way
  to it is changed at once, in the hub's database and in the proxy. Until then it leads to a page that says so.
- Stop withdraws a hand-over: no successor is wanted. One that comes all the same is deleted.
- While a GPU is given back for a booked notebook, the time it waits does not count as time to start.
- Progress is told in Carrel's words.

It remembers what it has seen of a pod in the hub's database, so a hub that restarts in between goes on.

What it writes in the cluster about a pod that Carrel hands over, it writes with the hub's own rights. A right that is
missing is said once, with the rule that helps; the server is stopped or goes on all the same.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

from kubernetes_asyncio.client.rest import ApiException
from kubespawner import KubeSpawner
from msgspec.structs import replace
from traitlets import Integer, Unicode, default

from carrel.dialects.carrel import NO_SUCCESSOR
from carrel.jupyterhub.booking_service import BookingServiceAway, ask_startable
from carrel.jupyterhub.hand_over import Pod, SeenPod, origin_of, seen_in, waits_for_booked_gpu
from carrel.jupyterhub.moving import MovingServers
from carrel.jupyterhub.profiles import carrel_profiles, next_free_words, notices_html
from carrel.jupyterhub.progress import REPEAT_S, kept_gpu, progress_words, with_pauses
from carrel.jupyterhub.startable import StartableAnswer

log = logging.getLogger(__name__)

FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409


class SuccessorWriter:
    """For the pod of one server."""

    def __init__(self, api: Any, namespace: str, pod: str) -> None:
        self._api = api
        self._namespace = namespace
        self._pod = pod

    async def withdraw(self) -> None:
        """Says on the pod that no successor is wanted; before it is deleted, or it may be too late."""
        patch = {"metadata": {"annotations": {NO_SUCCESSOR: "true"}}}
        try:
            await self._api.patch_namespaced_pod(self._pod, self._namespace, patch)
        except ApiException as error:
            _explain(error, f"pod {self._pod} may come back on CPU", "patch pods")

    async def delete(self, successor: Pod) -> None:
        """Only that pod: by now another one of the same name may have been started."""
        only_it = {"preconditions": {"uid": successor["metadata"]["uid"]}}
        try:
            await self._api.delete_namespaced_pod(self._pod, self._namespace, body=only_it)
        except ApiException as error:
            _explain(error, f"pod {self._pod}, which nobody wants, stays", "delete pods")

    async def give(self, kind: str, name: str, origin: str, successor: Pod) -> None:
        """The Secret or the Service that belonged to the first pod belongs to its successor, and ends with it."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._pod, "uid": successor["metadata"]["uid"]}
        ended = {"$patch": "delete", "uid": origin}
        patch = {"metadata": {"ownerReferences": [ended, {**owner, "blockOwnerDeletion": True}]}}
        change = getattr(self._api, f"patch_namespaced_{kind}")
        try:
            await change(name, self._namespace, patch)
        except ApiException as error:
            _explain(error, f"{kind} {name} does not belong to the pod that uses it", f"patch {kind}s")


def _explain(error: ApiException, consequence: str, right: str) -> None:
    """What is gone already needs nothing. Raises what is none of these: the call may be tried again."""
    if error.status == FORBIDDEN:
        log.warning("The hub may not %s, so %s. docs/jupyterhub.md has the Role that allows it.", right, consequence)
    elif error.status not in (NOT_FOUND, CONFLICT):
        raise error


LOOK_S = 1.0
"""How often a GPU notebook's pod is looked at, in what the hub watches anyway."""
ANSWER_COUNTS_S = 5.0
"""One spawn page asks the booking service once."""
TELL_NEXT_FREE_AFTER_S = 10.0


class CarrelSpawner(KubeSpawner):  # type: ignore[misc] # it has no types
    booking_url = Unicode(
        "",
        config=True,
        help="URL of Carrel's booking service, as the hub reaches it: http://carrel-booking.carrel. Without it, the "
        "spawn page does not show bookings and free GPUs.",
    )
    token_file = Unicode(
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        config=True,
        help="The hub's ServiceAccount token, with which the booking service is asked. It is read for each question.",
    )
    hand_over_limit = Integer(
        180,
        min=0,
        config=True,
        help="Seconds for which a pod that Carrel hands over to CPU counts as running after it has ended.",
    )
    booked_gpu_wait = Integer(
        900,
        min=0,
        config=True,
        help="Seconds that a booked notebook may wait for its GPU to be given back, besides start_timeout. More than "
        "Carrel's tiers.notebookGrace and the time that pods get to end.",
    )

    _removals: ClassVar[dict[str, "asyncio.Task[None]"]] = {}
    """The key is the uid of the pod whose successor nobody wants. The hub forgets the spawner before they end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen = SeenPod()
        self._following: asyncio.Task[None] | None = None
        self._move = asyncio.Lock()
        self._moving = ""
        """The path of the server, while its pod changes."""
        self._is_led_away = False
        self._up_since = 0.0
        """Since when the successor's pod runs, while its server does not listen."""
        self._answer: tuple[float, StartableAnswer | None] | None = None

    # --- the spawn page ----------------------------------------------------------------------------------------------

    @default("profile_list")
    def _profiles_of_carrel(self) -> Any:
        return carrel_profiles()

    async def get_options_form(self) -> str:
        form: str = await super().get_options_form()
        return notices_html(await self.startable()) + form if form else form

    async def startable(self) -> StartableAnswer | None:
        """What the person may start now. None: the booking service does not say."""
        now = asyncio.get_running_loop().time()
        if self._answer is None or now - self._answer[0] > ANSWER_COUNTS_S:
            self._answer = now, await self._ask_startable()
        return self._answer[1]

    async def _ask_startable(self) -> StartableAnswer | None:
        if not self.booking_url:
            return None
        try:
            return await ask_startable(self.booking_url, self.token_file, self.user.name)
        except BookingServiceAway as away:
            self.log.warning("%s", away)
            return None

    # --- starting ----------------------------------------------------------------------------------------------------

    def get_env(self) -> dict[str, str]:
        """Tell the notebook where its person books: there, `packages/carrel_gpu_notebook` shows it."""
        answer = self._answer[1] if self._answer else None
        found: dict[str, str] = super().get_env()
        return {"CARREL_BOOK_URL": answer.book_url, **found} if answer and answer.book_url else found

    def start(self) -> "asyncio.Future[str]":
        """The hub reads `start_timeout` once, right after this returns: so it gets the most, and the rest is done
        here."""
        usual = int(self.start_timeout)  # type: ignore[has-type]
        self.start_timeout = usual + self.booked_gpu_wait
        self._start_future = asyncio.ensure_future(self._start_in_time(usual))
        return self._start_future

    async def _start_in_time(self, usual: int) -> str:
        starting = asyncio.ensure_future(self._start())
        try:
            left = float(usual)
            while left > 0 and not starting.done():
                await asyncio.wait({starting}, timeout=LOOK_S)
                left -= 0 if waits_for_booked_gpu(self._pod()) else LOOK_S
                self._look()  # a pod that waits may be handed over to CPU while the person stops it
            if not starting.done():
                raise TimeoutError(f"pod {self._key()} did not start in {usual} seconds")
            url: str = starting.result()
            return url
        finally:
            self.start_timeout = usual
            starting.cancel()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        begun, told, kept, repeated = loop.time(), False, None, 0.0
        async for step in with_pauses(super().progress(), LOOK_S):
            if step is not None:
                yield {**step, "message": progress_words(step)}
                kept, repeated = kept_gpu(step) or kept, 0.0
            elif kept is not None and waits_for_booked_gpu(self._pod()):
                if loop.time() - repeated >= REPEAT_S:
                    repeated = loop.time()
                    yield {"message": kept.words(datetime.now(UTC))}
            elif not told and loop.time() - begun > TELL_NEXT_FREE_AFTER_S:
                told = True
                for line in next_free_words(await self.startable()):
                    yield {"message": line}

    # --- running -----------------------------------------------------------------------------------------------------

    async def poll(self) -> int | None:
        await self._start_watching_pods()
        if self._look():
            return None
        status: int | None = await super().poll()
        if status is None:
            await self._move_when_up()
        else:
            self._delete_late_successor()  # the hub drops the server now
            self._lead_to_server()
        return status

    async def get_url(self) -> str:
        """A hub that restarts asks for it, and drops a server that does not answer there: not between two pods."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.hand_over_limit
        while self._look() or (not self._seen.moved and not self._is_up() and loop.time() < give_up):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # KubeSpawner's cache tells nobody that it has changed
        await super().poll()
        url: str = await super().get_url()
        return url

    def start_polling(self) -> None:
        super().start_polling()
        self._following = asyncio.ensure_future(self._follow())

    def stop_polling(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        super().stop_polling()

    async def _follow(self) -> None:
        """While the pod has a GPU: without one, it is not handed over."""
        await self._start_watching_pods()
        while True:
            try:
                is_awaited = self._look()
                await self._lead_to_page()
                if not is_awaited:
                    await self._move_when_up()
                if not is_awaited and not self._seen.had_gpu and self._seen.moved:
                    return
            except Exception:
                self.log.exception("The pod %s could not be followed; it is looked at again", self._key())
            await asyncio.sleep(LOOK_S)

    def _look(self) -> bool:
        """Whether the pod is ending or gone, and its successor is awaited."""
        now, pod = datetime.now(UTC), self._pod()
        before, self._seen = self._seen, self._seen.look(pod, now)
        if self._seen != before and self.server:
            self.orm_spawner.state = self.get_state()
            self.db.commit()
        return self._seen.is_awaited(pod, now, timedelta(seconds=self.hand_over_limit))

    async def _lead_to_page(self) -> None:
        """Until the successor's server answers, or none comes: the proxy's page of errors at once, and the route when
        the first server has ended, as it answers until then. The hub's poll may change the route at the same time."""
        async with self._move:
            is_changing = self._look() or not self._seen.moved
            if not is_changing or not self.server or self.pending:
                return
            self._moving = self._moving or self.server.base_url
            self._moving_servers().add(self._moving)
            if self._is_led_away or (self._seen.moved and self._seen.ended is None and await self._answers()):
                return
            self._is_led_away = True
            proxy, data = self.user.settings["proxy"], {"user": self.user.name, "server_name": self.name}
            await proxy.add_route(self.proxy_spec, proxy.hub.host, data)

    def _lead_to_server(self) -> None:
        """Whoever calls it changes the route, or takes it away."""
        self._moving_servers().remove(self._moving)
        self._moving, self._is_led_away = "", False

    def _moving_servers(self) -> MovingServers:
        return MovingServers.of(self.user.settings["app"].tornado_application)

    async def _move_when_up(self) -> None:
        """Changes the way to the server, if its pod has changed. The hub's poll may see the new pod at the same time as
        we do: it is done once."""
        async with self._move:
            if self._seen.moved or not self._is_up() or not self.server or self.pending:
                return
            await super().poll()  # it writes the address into the hub's database
            now = asyncio.get_running_loop().time()
            self._up_since = self._up_since or now
            if now - self._up_since < self.hand_over_limit and not await self._answers():
                return  # a pod that runs needs a moment until its server listens
            await self.user.settings["proxy"].add_user(self.user, self.name)
            self._lead_to_server()
            await self._give_what_it_owned()
            self._seen, self._up_since = replace(self._seen, moved=True), 0.0
            self.orm_spawner.state = self.get_state()
            self.db.commit()
            self.log.info("The server %s is served by the successor of its pod", self._log_name)

    async def _answers(self) -> bool:
        """Whether somebody listens at the address of the server that the hub knows."""
        address = urlsplit(self.server.host)
        try:
            async with asyncio.timeout(LOOK_S):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    def _is_up(self) -> bool:
        pod = self._pod()
        return pod is not None and bool(pod["status"].get("podIP")) and bool(self.is_pod_running(pod))

    async def _give_what_it_owned(self) -> None:
        pod = self._pod()
        origin = origin_of(pod) if pod else ""
        if not pod or not origin:
            return
        if self.internal_ssl:
            await self._successors().give("secret", self.secret_name, origin, pod)
        if self.internal_ssl or self.services_enabled:
            await self._successors().give("service", self.pod_name, origin, pod)

    # --- stopping ----------------------------------------------------------------------------------------------------

    async def stop(self, now: bool = False) -> None:
        await self._start_watching_pods()
        self._look()
        if self._seen.had_gpu:
            await self._successors().withdraw()
        self._delete_late_successor()
        self._lead_to_server()
        await super().stop(now)

    def _delete_late_successor(self) -> None:
        """Carrel may have decided on one before it read that none is wanted."""
        origin = self._seen.uid
        if origin in self._removals or not self._seen.may_be_succeeded(self._pod()):
            return
        removal = asyncio.ensure_future(self._delete_successor(self._key(), origin, self._successors()))
        self._removals[origin] = removal
        removal.add_done_callback(lambda _: self._removals.pop(origin, None))

    async def _delete_successor(self, key: str, origin: str, successors: SuccessorWriter) -> None:
        """The names are those of the server that is stopped: by now the person may start the next one."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.hand_over_limit
        while loop.time() < give_up:
            pod = self.pod_reflector.pods.get(key)
            if pod is not None and origin_of(pod) == origin:
                await successors.delete(pod)
                return
            await asyncio.sleep(LOOK_S / 4)

    # --- state -------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "carrel": self._seen.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._seen = seen_in(state.get("carrel") or {})

    def clear_state(self) -> None:
        super().clear_state()
        self._seen = SeenPod()

    def _pod(self) -> Pod | None:
        reflector = self.pod_reflector
        return reflector.pods.get(self._key()) if reflector else None

    def _key(self) -> str:
        return f"{self.namespace}/{self.pod_name}"

    def _successors(self) -> SuccessorWriter:
        return SuccessorWriter(self.api, self.namespace, self.pod_name)
