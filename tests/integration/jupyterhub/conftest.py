"""One hub for the tests of a module. It starts in ten seconds or more, and each test has users and GPUs of its own."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.kit.gpus import a_node
from tests.kit.jupyterhub.hub import HubBed, a_startable, running_hub

MODELS = ("A", "B", "C", "D", "E")
"""Each on a node of its own, with one GPU; the node is called as the model."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[HubBed]:
    nodes = [a_node(model.lower(), gpus=1, model=model) for model in MODELS]
    # Polled often, so that polls fall between two pods.
    async with running_hub(nodes, poll_interval=1) as running:
        running.startable.update(a_startable(dict.fromkeys(MODELS, 1)))
        yield running
