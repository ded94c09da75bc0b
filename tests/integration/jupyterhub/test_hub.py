"""A real JupyterHub with `CarrelSpawner`: servers behind a real proxy, on the embedded API."""

import asyncio
import os
import re
import sys
from datetime import UTC, datetime

import aiohttp
import pytest
from yarl import URL

from carrel.dialects.hand_over_record import Why, successor_of
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch
from carrel.kubernetes.objects.resources import PODS
from tests.kit.jupyterhub.hub import HubBed, a_booking, a_startable
from tests.kit.jupyterhub.hub_files import NAMESPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_notebook_holds_its_gpu_until_the_idle_culler_stops_it(bed: HubBed) -> None:
    bed.kubelets.with_jupyter.add("ada@lab.example")
    pod = await bed.start_and_wait("ada@lab.example", "gpu-a-1")

    assert pod["metadata"]["annotations"]["carrel.dev/user"] == "ada@lab.example"
    assert pod["metadata"]["annotations"]["carrel.dev/tier"] == "opportunistic"
    assert await bed.holders("a") == {pod["metadata"]["uid"]}
    assert await bed.notebook("ada@lab.example", "api/kernels") == 200

    culler = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jupyterhub_idle_culler", f"--url={bed.url}/hub/api", "--timeout=1", "--cull-every=2"),
        env={**os.environ, "JUPYTERHUB_API_TOKEN": bed.token},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:

        async def is_free() -> bool:
            return not await bed.holders("a") and not await bed.server("ada@lab.example")

        await bed.wait_for("the GPU is free", is_free)
    finally:
        culler.kill()
        await culler.wait()


async def test_a_revoked_notebook_is_back_on_cpu_at_the_same_url(bed: HubBed) -> None:
    first = await bed.start_and_wait("bea@lab.example", "gpu-b-1")
    await bed.book("ben@lab.example", "B")

    booked = await bed.start_and_wait("ben@lab.example", "gpu-b-1")
    await bed.answers("bea@lab.example")

    pod = await bed.pod("bea@lab.example")  # exactly one
    assert pod["metadata"]["uid"] != first["metadata"]["uid"]
    assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"].get("limits", {})
    assert booked["metadata"]["annotations"]["carrel.dev/tier"] == "booked"
    assert await bed.holders("b") == {booked["metadata"]["uid"]}

    async def times_moved() -> int:
        return (bed.folder / "hub.log").read_text().count("The server bea@lab.example is served by the successor")

    await bed.wait_for("the hub says that it has moved the server", times_moved)
    for user in ("bea@lab.example", "ben@lab.example"):
        await bed.stop_and_wait(user)
    assert await times_moved() == 1


async def test_a_hub_that_polls_between_the_two_pods_keeps_the_server(bed: HubBed) -> None:
    first = await bed.start_and_wait("cia@lab.example", "gpu-c-1")
    await end_as_carrel_does(bed, first)

    # Whoever asks for a server that the hub takes for dead gets a new one.
    status, said = await bed.api("POST", "users/cia@lab.example/server")
    assert (status, "already running" in str(said)) == (400, True), said
    await bed.carrel.create(PODS, successor_of(first, Why.REVOKED, datetime.now(UTC), UTC), NAMESPACE)

    await bed.answers("cia@lab.example")
    assert await successors(bed, "cia@lab.example") == [first["metadata"]["uid"]]
    await bed.stop_and_wait("cia@lab.example")


async def test_a_hub_that_restarts_between_the_two_pods_keeps_the_server(bed: HubBed) -> None:
    first = await bed.start_and_wait("dan@lab.example", "gpu-d-1")
    await end_as_carrel_does(bed, first)

    await bed.restart()
    await bed.carrel.create(PODS, successor_of(first, Why.REVOKED, datetime.now(UTC), UTC), NAMESPACE)

    await bed.answers("dan@lab.example")
    assert await successors(bed, "dan@lab.example") == [first["metadata"]["uid"]]
    await bed.stop_and_wait("dan@lab.example")


async def test_while_the_pod_changes_people_see_what_happens_and_restart_does_no_harm(bed: HubBed) -> None:
    first = await bed.start_and_wait("gus@lab.example", "gpu-d-1")
    address = f"{bed.url}/user/gus@lab.example/lab"
    async with SignedIn(bed, "gus@lab.example") as session:
        await end_as_carrel_does(bed, first)

        async def is_shown() -> str:
            async with session.get(address, headers={"Accept": "text/html"}) as answer:
                page = await answer.text()
            return page if "Your server is moving" in page else ""

        page = await bed.wait_for("the address leads to the page", is_shown)
        assert 'http-equiv="refresh"' in page

        async def is_not_offered_a_restart() -> bool:
            """JupyterLab offers one for 503, which the proxy may say until its route has changed."""
            return await bed.notebook("gus@lab.example", "api/kernels") == 502

        await bed.wait_for("programs are told to come again", is_not_offered_a_restart)
        async with session.get(f"{bed.url}/hub/spawn", headers={"Accept": "text/html"}) as answer:  # its Restart
            assert "Your server is moving" in await answer.text()
        status, _ = await bed.api("POST", "users/gus@lab.example/server")
        assert status == 400
        assert not await bed.pods("gus@lab.example")

    await bed.carrel.create(PODS, successor_of(first, Why.REVOKED, datetime.now(UTC), UTC), NAMESPACE)
    await bed.answers("gus@lab.example")
    assert await successors(bed, "gus@lab.example") == [first["metadata"]["uid"]]
    await bed.stop_and_wait("gus@lab.example")


async def test_the_proxys_page_of_errors_says_it_while_the_pod_is_still_there(bed: HubBed) -> None:
    first = await bed.start_and_wait("gia@lab.example", "gpu-d-1")
    async with SignedIn(bed, "gia@lab.example") as session:
        await end_server(bed, first)

        async def is_said() -> bool:
            address = f"{bed.url}/user/gia@lab.example/lab"
            async with session.get(address, headers={"Accept": "text/html"}) as answer:
                return "Your server is moving" in await answer.text()

        await bed.wait_for("people are told", is_said)
        assert await bed.pods("gia@lab.example")

    bed.kubelets.may_remove.set()
    await bed.stop_and_wait("gia@lab.example")


async def test_a_server_that_never_comes_back_is_no_longer_said_to_move(bed: HubBed) -> None:
    first = await bed.start_and_wait("gil@lab.example", "gpu-d-1")
    async with SignedIn(bed, "gil@lab.example") as session:
        await end_as_carrel_does(bed, first)
        await bed.stop_and_wait("gil@lab.example")

        async with session.get(f"{bed.url}/user/gil@lab.example/lab", headers={"Accept": "text/html"}) as answer:
            assert "Your server is moving" not in await answer.text()


async def test_a_successor_that_comes_after_stop_is_deleted(bed: HubBed) -> None:
    first = await bed.start_and_wait("eve@lab.example", "gpu-e-1")
    await end_as_carrel_does(bed, first)

    await bed.stop_and_wait("eve@lab.example")
    await bed.carrel.create(PODS, successor_of(first, Why.REVOKED, datetime.now(UTC), UTC), NAMESPACE)

    async def has_none() -> bool:
        return not await bed.pods("eve@lab.example")

    await bed.wait_for("the successor is deleted", has_none)
    assert not await bed.server("eve@lab.example")


async def test_stop_says_on_the_pod_that_no_successor_is_wanted(bed: HubBed) -> None:
    await bed.start_and_wait("fay@lab.example", "gpu-a-1")
    bed.kubelets.may_remove.clear()

    await bed.stop("fay@lab.example")

    async def is_said() -> bool:
        pods = await bed.pods("fay@lab.example")
        return [pod["metadata"]["annotations"].get("carrel.dev/no-successor") for pod in pods] == ["true"]

    await bed.wait_for("the annotation is written", is_said)
    bed.kubelets.may_remove.set()
    await bed.is_gone("fay@lab.example")


async def test_the_spawn_page_shows_the_booking_what_is_free_and_no_gpu(bed: HubBed) -> None:
    before = dict(bed.startable)
    end = datetime(2030, 11, 22, 17, 0, tzinfo=UTC)
    notices = ["Your booking <b>ends</b> soon."]
    choices = a_startable(
        {"A": 3, "B": 0}, bookings=[a_booking("E", end)], notices=notices, book_url="https://b.example/book"
    )
    bed.startable.update(choices)
    async with SignedIn(bed, "hal@lab.example") as session:
        async with session.get(f"{bed.url}/hub/spawn") as answer:
            page = await answer.text()
        xsrf = re.search(r'_xsrf=([^"&]+)', page)
        assert xsrf is not None
        async with session.post(
            f"{bed.url}/hub/spawn?_xsrf={xsrf[1]}", data={"profile": "no-gpu"}, allow_redirects=False
        ) as answer:
            assert answer.status == 302
    await bed.answers("hal@lab.example")
    bed.startable.update(before)

    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles == ["Your booking: 1 E until Fri 22 Nov 18:00 CET", "Free now: 3 A (may be taken back)", "No GPU"]
    assert "Your booking &lt;b&gt;ends&lt;/b&gt; soon." in page
    assert 'href="https://b.example/book"' in page
    assert "hal@lab.example" in bed.asked
    pod = await bed.pod("hal@lab.example")
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "0"
    assert "carrel.dev/tier" not in pod["metadata"]["annotations"]
    environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert environment["CARREL_BOOK_URL"] == "https://b.example/book"
    await bed.stop_and_wait("hal@lab.example")


async def test_without_the_booking_service_people_can_still_start(bed: HubBed) -> None:
    before = dict(bed.startable)
    bed.startable.clear()
    async with SignedIn(bed, "ida@lab.example") as session, session.get(f"{bed.url}/hub/spawn") as answer:
        page = await answer.text()
    bed.startable.update(before)

    assert re.findall(r"<h3>(.*?)</h3>", page) == ["A GPU if one is free", "No GPU"]
    assert "booking service does not answer" in page


# --- what the tests do ------------------------------------------------------------------------------------------------


async def end_server(bed: HubBed, pod: Json) -> None:
    """It is told to leave, and its server has ended; the pod is there until kubelets may remove it."""
    name, only_it = pod["metadata"]["name"], DeleteOptions(uid=pod["metadata"]["uid"])
    told = {"metadata": {"annotations": {"carrel.dev/leave-by": "2030-01-01T00:00:00Z"}}}
    await bed.carrel.patch(PODS, name, MergePatch(told), NAMESPACE)
    bed.kubelets.may_remove.clear()
    await bed.carrel.delete(PODS, name, NAMESPACE, how=only_it)

    async def is_over() -> bool:
        return pod["metadata"]["uid"] not in bed.kubelets.running()

    await bed.wait_for("its server has ended", is_over)


async def end_as_carrel_does(bed: HubBed, pod: Json) -> None:
    """It is told to leave, and deleted. There is no successor yet."""
    user, name = pod["metadata"]["annotations"]["hub.jupyter.org/username"], pod["metadata"]["name"]
    await end_server(bed, pod)
    bed.kubelets.may_remove.set()

    async def is_gone() -> bool:
        return not any(each["metadata"]["name"] == name for each in await bed.pods(user))

    await bed.wait_for("the pod is gone", is_gone)


async def successors(bed: HubBed, user: str) -> list[str]:
    """Which pods the pods of a user succeed."""
    notes = [pod["metadata"]["annotations"].get("carrel.dev/handed-over", "") for pod in await bed.pods(user)]
    return [found[1] for note in notes if (found := re.search(r'"from": ?"([^"]+)"', note))]


class SignedIn:
    """A browser's session."""

    def __init__(self, bed: HubBed, user: str) -> None:
        self._bed, self._user = bed, user

    async def __aenter__(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        async with self._session.get(f"{self._bed.url}/hub/login"):
            pass
        cookies = self._session.cookie_jar.filter_cookies(URL(f"{self._bed.url}/hub/"))
        form = {"username": self._user, "password": "any", "_xsrf": cookies["_xsrf"].value}
        async with self._session.post(f"{self._bed.url}/hub/login", data=form, allow_redirects=False) as answer:
            assert answer.status == 302, await answer.text()
        return self._session

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()
