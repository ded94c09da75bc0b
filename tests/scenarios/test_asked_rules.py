"""When the API server begins to depend on the webhook: once it can answer, and from then on for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from carrel.admission.asked_rules import write_rules
from carrel.admission.run import keep_asked
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Conflict
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS
from carrel.manifests import webhooks
from kubernetes_in_memory import EmbeddedApi
from tests.kit.eventually import LIMIT_S

NAME = "gpu-booking-webhook"
ENTRY = "gpu-pods.carrel.dev"
RULES = next(iter(webhooks()))["webhooks"][0]["rules"]


class Installed:
    """The webhook configuration as the chart installs it, and replicas that can answer when a test says so."""

    def __init__(self) -> None:
        self.api = EmbeddedApi()
        self.client = Client(self.api)

    async def install(self, *more: dict[str, Any]) -> None:
        (found,) = webhooks(for_embedded_api=True)
        del found["webhooks"][0]["rules"]
        found |= {"metadata": {"name": NAME}, "webhooks": [*found["webhooks"], *more]}
        await self.client.create(MUTATING_WEBHOOKS, found)

    async def entries(self) -> dict[str, list[Any]]:
        found = await self.client.get(MUTATING_WEBHOOKS, NAME)
        return {each["name"]: each.get("rules") or [] for each in found["webhooks"]}

    async def take_rules_away(self) -> None:
        """As a tool that keeps the cluster as a repository says, if its manifests named them."""
        found = await self.client.get(MUTATING_WEBHOOKS, NAME)
        found["webhooks"][0]["rules"] = []
        await self.client.update(MUTATING_WEBHOOKS, found)

    @asynccontextmanager
    async def replica(self, *, answers: bool = True) -> AsyncIterator[asyncio.Event]:
        event = asyncio.Event()
        if answers:
            event.set()
        running = asyncio.ensure_future(keep_asked(self.client, NAME, event))
        try:
            yield event
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def wait_asked(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                if (await self.entries())[ENTRY] == RULES:
                    return
                await asyncio.sleep(0)


@pytest.fixture
async def installed() -> Installed:
    found = Installed()
    await found.install()
    return found


async def test_no_pod_is_asked_about_before_the_webhook_can_answer(installed: Installed) -> None:
    async with installed.replica(answers=False) as answers:
        for _ in range(100):
            await asyncio.sleep(0)
        assert (await installed.entries())[ENTRY] == []
        answers.set()
        await installed.wait_asked()
    assert (await installed.entries())[ENTRY] == RULES, "at zero replicas too"


async def test_rules_that_somebody_takes_away_are_written_again(installed: Installed) -> None:
    async with installed.replica(), installed.replica():
        await installed.wait_asked()
        await installed.take_rules_away()
        await installed.wait_asked()


async def test_a_configuration_that_comes_later_gets_them() -> None:
    later = Installed()
    async with later.replica():
        for _ in range(100):
            await asyncio.sleep(0)
        await later.install()
        await later.wait_asked()


async def test_entries_of_others_are_left_alone() -> None:
    installed = Installed()
    (ours,) = webhooks(for_embedded_api=True)
    theirs = {**ours["webhooks"][0], "name": "gpu-booking.k8s.io", "rules": []}
    await installed.install(theirs)
    async with installed.replica():
        await installed.wait_asked()
    assert (await installed.entries())["gpu-booking.k8s.io"] == []


async def test_what_is_there_is_not_written_again(installed: Installed) -> None:
    async with installed.replica():
        await installed.wait_asked()
    before = (await installed.client.get(MUTATING_WEBHOOKS, NAME))["metadata"]["resourceVersion"]
    async with installed.replica():
        for _ in range(100):
            await asyncio.sleep(0)
    assert (await installed.client.get(MUTATING_WEBHOOKS, NAME))["metadata"]["resourceVersion"] == before


async def test_of_replicas_that_write_at_once_one_does_and_the_others_find_it_done(installed: Installed) -> None:
    read, reading = installed.client.get, asyncio.Event()

    async def slowly(*arguments: Any, **more: Any) -> Any:
        found = await read(*arguments, **more)
        if not reading.is_set():  # the first has read, and another writes before it
            reading.set()
            await write_rules(Client(installed.api), NAME)
        return found

    installed.client.get = slowly  # type: ignore[method-assign] # between its read and its write
    with pytest.raises(Conflict):
        await write_rules(installed.client, NAME)
    async with installed.replica():
        await installed.wait_asked()
