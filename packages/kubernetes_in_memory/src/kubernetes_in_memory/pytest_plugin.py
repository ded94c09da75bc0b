"""A pytest plugin: the fixtures `kubernetes_api` and `kubeconfig_file`, a new and empty API for each test.

Where the package is installed by itself, pytest finds the plugin. Otherwise a `conftest.py` names it:
`pytest_plugins = ["kubernetes_in_memory.pytest_plugin"]`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubernetes_in_memory.testing import RunningApi, running_api


@pytest.fixture
def kubernetes_api() -> Iterator[RunningApi]:
    """A Kubernetes API on loopback: its `url`, and the content of a `kubeconfig` for it."""
    with running_api() as api:
        yield api


@pytest.fixture
def kubeconfig_file(kubernetes_api: RunningApi, tmp_path: Path) -> Path:
    """A kubeconfig for `kubernetes_api`, as a file."""
    path = tmp_path / "kubeconfig"
    path.write_text(kubernetes_api.kubeconfig)
    return path
