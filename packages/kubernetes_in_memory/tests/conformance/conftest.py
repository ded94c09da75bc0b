"""The same small scenario, driven by three clients. Which server they talk to is the kubeconfig's matter."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubernetes_in_memory.testing import running_api


@pytest.fixture(params=[False, True], ids=["http", "https"])
def kubeconfig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Override it to run the scenarios on another server."""
    with running_api(tls=request.param) as api:
        path = tmp_path / "kubeconfig"
        path.write_text(api.kubeconfig)
        yield path


@pytest.fixture
def unique() -> str:
    """A word for names that nobody else has: the server may be shared."""
    return f"conform-{secrets.token_hex(4)}"
