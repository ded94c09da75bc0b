from collections.abc import AsyncIterator

import pytest

from tests.contracts.backends import BACKENDS, Backend
from tests.contracts.fixtures import cluster, desks, namespace

__all__ = ["backend", "cluster", "desks", "namespace"]


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with BACKENDS[request.param]() as backend:
        yield backend
