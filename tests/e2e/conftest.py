"""The end-to-end tests: `make e2e`. Plain `make test` leaves them out, because they need root and a real Kubernetes."""

import os

from testbed.fixtures import api_server, cluster, node, pytest_runtest_makereport, pytest_sessionstart, server

__all__ = ["api_server", "cluster", "node", "pytest_runtest_makereport", "pytest_sessionstart", "server"]

# Most of these clusters have no webhook that could seal pods; those that do give a key (`webhook.sealed_with`).
os.environ.setdefault("CARREL_SEAL_KEY", "none")
