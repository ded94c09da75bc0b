"""The scenarios that kubectl, the official client and lightkube play on the embedded API, here on a real server."""

from pathlib import Path

import pytest

from packages.kubernetes_in_memory.tests.conformance.conftest import unique
from testbed.control_plane import ApiServer

__all__ = ["kubeconfig", "unique"]


@pytest.fixture(params=["real-kube-apiserver"])
def kubeconfig(server: ApiServer) -> Path:
    return server.kubeconfig
