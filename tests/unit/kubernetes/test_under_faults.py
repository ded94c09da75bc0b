"""The reflector behind a bad network, by seed: in the end the store is what the server has."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import MergePatch, Selection
from carrel.kubernetes.objects.resources import LEASES
from carrel.kubernetes.reflector import Reflector, WatchTiming
from carrel.kubernetes.store import Store
from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.faults import FaultPlan
from tests.contracts.objects import lease
from tests.kit.faults import Faulty
from tests.unit.kubernetes.fake_time import FakeTime

HERE = Selection("default")
NAMES = [f"gpu-n1-{index}" for index in range(8)]


async def change_something(client: Client, chance: random.Random, there: set[str]) -> None:
    name = chance.choice(NAMES)
    if name not in there:
        await client.create(LEASES, lease(name), "default")
        there.add(name)
    elif chance.random() < 0.4:
        await client.delete(LEASES, name, "default")
        there.discard(name)
    else:
        holder = {"spec": {"holderIdentity": f"pod-{chance.randrange(1000)}"}}
        await client.patch(LEASES, name, MergePatch(holder), "default")


@pytest.mark.parametrize("seed", range(20))
async def test_the_store_becomes_what_the_server_has(seed: int) -> None:
    api, time, chance = EmbeddedApi(), FakeTime(), random.Random(seed)
    plan = FaultPlan(seed, stale_list=0.3, drop_watch=0.1, double_event=0.2, delay_event=0.2, expire_watch=0.3)
    network = Faulty(api, plan, time.sleep)
    reflector: Reflector[Any] = Reflector(
        Client(network), LEASES, Store(), HERE, watch_timing=WatchTiming(page=3), timing=time.timing()
    )
    told: dict[str, str] = {}

    def hear(old: Any, new: Any) -> None:
        """Everybody who only listens must end up with the same picture."""
        item = old if new is None else new
        assert told.get(item.metadata.name) == (old.metadata.resource_version if old is not None else None)
        if new is None:
            del told[item.metadata.name]
        else:
            told[item.metadata.name] = item.metadata.resource_version

    reflector.on_change(hear)
    running = asyncio.create_task(reflector.run())
    client = Client(api)
    there: set[str] = set()
    for _ in range(120):
        await change_something(client, chance, there)
        await time.advance(chance.random())
    truth = {item.metadata.name: item.metadata.resource_version for item in (await client.list(LEASES, HERE)).items}

    def is_true() -> bool:
        return {item.metadata.name: item.metadata.resource_version for item in reflector.store} == truth

    await time.until(is_true)
    assert told == truth, network.story
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await api.aclose()
