"""Fixtures of the contract suite that follow from a `backend`, whichever it is."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import AlreadyExists, ClusterError, DeleteOptions, NotFound
from carrel.kubernetes.objects.resources import CRDS, NAMESPACES, SERVICE_ACCOUNTS, Resource
from tests.contracts.backends import Backend, eventually, unique
from tests.contracts.objects import custom_kind, definition_of


@pytest.fixture
def cluster(backend: Backend) -> Client:
    return backend.client


@pytest.fixture
async def namespace(cluster: Client) -> AsyncIterator[str]:
    """A namespace that only this test uses."""
    name = unique("contract")
    await cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    with suppress(AlreadyExists):
        # The controller that makes it in a whole cluster may be absent, or late.
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        await cluster.create(SERVICE_ACCOUNTS, account, name)
    yield name
    with suppress(ClusterError):
        await cluster.delete(NAMESPACES, name, how=DeleteOptions(propagation="Background"))


@pytest.fixture
async def desks(cluster: Client) -> AsyncIterator[Resource[Any]]:
    """A custom kind, defined for this test only and ready to use."""
    kind = custom_kind(f"{unique('library')}.example")
    definition = await cluster.create(CRDS, definition_of(kind))

    async def is_served() -> bool:
        with suppress(NotFound):
            await cluster.list(kind)
            return True
        return False

    await eventually(is_served)
    yield kind
    with suppress(ClusterError):
        await cluster.delete(CRDS, definition["metadata"]["name"])
