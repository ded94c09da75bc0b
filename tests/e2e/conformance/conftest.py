"""The scenarios that kubectl, the official client and lightkube play on the embedded API, here on a real server."""

from pathlib import Path

import pytest

from testbed.control_plane import ApiServer
from tests.kubernetes_in_memory.conformance.conftest import unique

__all__ = ["kubeconfig", "unique"]


@pytest.fixture(params=["real-kube-apiserver"])
def kubeconfig(server: ApiServer) -> Path:
    return server.kubeconfig
