"""The contract suite of the Cluster port, every test of it, on a real kube-apiserver."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path

import pytest

from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from testbed.control_plane import ApiServer
from tests.contracts import backends
from tests.contracts.backends import Backend
from tests.contracts.fixtures import cluster, desks, namespace

__all__ = ["cluster", "desks", "namespace"]

SUITE = [f"tests.contracts.{file.stem}" for file in sorted(Path(backends.__file__).parent.glob("test_*.py"))]
pytest.register_assert_rewrite(*SUITE)

for module in SUITE:
    for name, thing in vars(import_module(module)).items():
        # Tests and fixtures are callable. A name that two modules give to different ones would hide a test.
        if callable(thing) and not name.startswith("_"):
            assert globals().setdefault(name, thing) is thing, f"{module}.{name} hides another {name}"


@pytest.fixture(params=["real-kube-apiserver"])
async def backend(server: ApiServer) -> AsyncIterator[Backend]:
    nobody = server.authority.kubeconfig(server.run.data / "nobody.kubeconfig", server.url, "nobody's")
    async with AsyncExitStack() as stack:
        wires = [HttpTransport(access_to(kubeconfig, {})) for kubeconfig in (server.token_kubeconfig, nobody)]
        for wire in wires:
            stack.push_async_callback(wire.aclose)
        yield Backend.on(wires[0], wires[1], lambda: asyncio.to_thread(server.compact))
