"""What is built on the port, on the same servers: a reflector follows, an election hands over."""

import asyncio
from contextlib import suppress
from typing import Any

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import MergePatch, Selection
from carrel.kubernetes.leader_election import Candidate, Election
from carrel.kubernetes.objects.resources import LEASES
from carrel.kubernetes.reflector import Reflector, WatchTiming
from carrel.kubernetes.store import Store
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from tests.contracts.backends import Backend, eventually
from tests.contracts.objects import lease


async def test_a_reflector_has_what_the_server_has(cluster: Client, namespace: str) -> None:
    store: Store[Any] = Store({"holder": lambda item: [item.spec.holder_identity]})
    reflector: Reflector[Any] = Reflector(
        cluster, LEASES, store, Selection(namespace), watch_timing=WatchTiming(page=2)
    )
    for name in ("a", "b", "c", "d", "e"):
        await cluster.create(LEASES, lease(name, "somebody"), namespace)
    running = asyncio.create_task(reflector.run())
    async with asyncio.timeout(90):
        await reflector.wait_synced()
    assert [item.metadata.name for item in store.find("holder", "somebody")] == ["a", "b", "c", "d", "e"]
    await cluster.delete(LEASES, "a", namespace)
    await cluster.patch(LEASES, "b", MergePatch({"spec": {"holderIdentity": "another"}}), namespace)
    await cluster.create(LEASES, lease("f", "another"), namespace)

    async def is_there() -> bool:
        return store.get("f", namespace) is not None

    await eventually(is_there)
    assert [item.metadata.name for item in store.find("holder", "somebody")] == ["c", "d", "e"]
    assert [item.metadata.name for item in store.find("holder", "another")] == ["b", "f"]
    assert reflector.failures == 0
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


class ForgetsBetweenPages:
    """A wire to a server that forgets all history, once, before the second page of a list."""

    def __init__(self, backend: Backend, namespace: str) -> None:
        self._backend = backend
        self._namespace = namespace
        self.has_forgotten = False

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.query.get("continue") and not self.has_forgotten:
            self.has_forgotten = True
            await self._backend.client.create(LEASES, lease("z", "late"), self._namespace)
            await self._backend.compact()
        return await self._backend.wire.send(request)

    async def aclose(self) -> None:
        pass


async def test_a_reflector_has_everything_although_history_was_compacted_between_two_pages(
    backend: Backend, cluster: Client, namespace: str
) -> None:
    """The second page is of the world of the first, or the list begins anew: a server may do either."""
    for name in ("a", "b", "c", "d", "e"):
        await cluster.create(LEASES, lease(name), namespace)
    wire = ForgetsBetweenPages(backend, namespace)
    store: Store[Any] = Store()
    reflector: Reflector[Any] = Reflector(
        Client(wire), LEASES, store, Selection(namespace), watch_timing=WatchTiming(page=2)
    )
    running = asyncio.create_task(reflector.run())

    async def is_complete() -> bool:
        return all(store.get(name, namespace) is not None for name in ("a", "b", "c", "d", "e", "z"))

    await eventually(is_complete)
    assert wire.has_forgotten
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_an_election_hands_over_with_a_later_term(cluster: Client, namespace: str) -> None:
    terms = []
    async with asyncio.timeout(90):
        for name in ("first", "second"):
            async with Election(cluster, Candidate(namespace, "carrel", name)).leading() as leadership:
                terms.append(leadership.term)
                spec = (await cluster.get(LEASES, "carrel", namespace))["spec"]
                assert spec["holderIdentity"] == name
            assert not leadership.holds()
    assert terms == [0, 1]
    assert not (await cluster.get(LEASES, "carrel", namespace))["spec"].get("holderIdentity")
