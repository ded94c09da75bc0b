"""The end-to-end tests: `make e2e`. Plain `make test` leaves them out, because they need root and a real Kubernetes."""

from testbed.fixtures import api_server, cluster, node, pytest_runtest_makereport, pytest_sessionstart, server

__all__ = ["api_server", "cluster", "node", "pytest_runtest_makereport", "pytest_sessionstart", "server"]
