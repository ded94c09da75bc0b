"""The same small scenario, driven by three clients. Which server they talk to is the kubeconfig's matter."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes_in_memory.conformance.served import embedded_api


@pytest.fixture(params=[False, True], ids=["http", "https"])
def kubeconfig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Override it to run the scenarios on another server."""
    with embedded_api(tmp_path, tls=request.param) as config:
        yield config


@pytest.fixture
def unique() -> str:
    """A word for names that nobody else has: the server may be shared."""
    return f"conform-{secrets.token_hex(4)}"
