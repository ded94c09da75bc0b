"""The end-to-end tests: `make e2e`. Plain `make test` leaves them out, because they need root and a real Kubernetes."""

from collections.abc import Iterator

import pytest

from testbed.control_plane import ApiServer
from testbed.control_plane import api_server as start_api_server
from testbed.fixtures import api_server, cluster, node, pytest_runtest_makereport, pytest_sessionstart, shown_run

__all__ = ["api_server", "cluster", "node", "pytest_runtest_makereport", "pytest_sessionstart", "server"]


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    """The real counterpart of the embedded API: with the two controllers without which namespaces never go and
    orphans are never collected, and no others. Tests play scheduler and kubelet themselves."""
    with shown_run("server") as run, start_api_server(run) as api:
        api.start_controllers(["namespace", "garbagecollector"])
        yield api
