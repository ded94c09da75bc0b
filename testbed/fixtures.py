"""pytest fixtures: each test requests as much of a real Kubernetes as it needs, and shares it with the others.

    api_server   etcd and kube-apiserver                                          a few seconds, no root
    server       with the controllers without which namespaces never go and
                 orphans are never collected: the embedded API's counterpart      a few seconds, no root
    cluster      with controllers, a scheduler and hollow GPU nodes               ten seconds, no root
    node         with controllers, a scheduler, kube-proxy and one real kubelet   twenty seconds, root

A failed test shows the end of every component's log. Ctrl-C and SIGTERM take everything down before pytest ends.
"""

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from testbed import runs
from testbed.control_plane import ApiServer, Shape
from testbed.control_plane import api_server as start_api_server
from testbed.hollow import hollow_node, start_hollow_nodes
from testbed.node import Node, cluster_with_node
from testbed.processes import tail
from testbed.runs import Run

HOLLOW_NODES = 3
_going_on: list[Run] = []


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    with shown_run("api-server") as run, start_api_server(run) as api:
        yield api


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    with shown_run("server") as run, start_api_server(run) as api:
        api.start_controllers(["namespace", "garbagecollector"])
        yield api


@pytest.fixture(scope="session")
def cluster() -> Iterator[ApiServer]:
    with shown_run("cluster") as run, start_api_server(run, Shape(service_accounts=True)) as api:
        api.start_controllers()
        api.start_scheduler()
        start_hollow_nodes(api, [hollow_node(f"hollow-{number}") for number in range(HOLLOW_NODES)])
        api.wait_for_namespace("default")
        yield api


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    with shown_run("node") as run, cluster_with_node(run) as node:
        node.api.wait_for_namespace("default")
        yield node


@contextmanager
def shown_run(name: str) -> Iterator[Run]:
    """A run whose logs are shown when a test fails meanwhile."""
    with runs.new(name) as run:
        _going_on.append(run)
        try:
            yield run
        finally:
            _going_on.remove(run)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"log of {log.stem}", tail(log)) for run in _going_on for log in run.logs]
    return report


def pytest_sessionstart() -> None:
    def end(number: int, frame: FrameType | None) -> None:
        pytest.exit("terminated", returncode=128 + signal.SIGTERM)

    # Python would end at once, without a fixture's last words.
    signal.signal(signal.SIGTERM, end)
