"""The test bed for developers: one per user, kept running by a process in the background."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from testbed import namespace, runs
from testbed.clients import kubectl
from testbed.control_plane import ApiServer, Shape, api_server
from testbed.hollow import hollow_node, start_hollow_nodes
from testbed.node import cluster_with_node
from testbed.processes import Failed, tail
from testbed.tools import cache, say

START_SECONDS = 1800
"""More than a first build takes on a slow machine."""


class Up(msgspec.Struct):
    """A running test bed, as it is written to a file for other processes."""

    pid: int
    kubeconfig: str
    run: str
    nodes: list[str]


def up(hollow_nodes: int) -> Up:
    """Starts the test bed, or finds the one that runs."""
    if running := status():
        return running
    log = cache() / "up.log"
    command = [sys.executable, "-m", "testbed", "keep", "--nodes", str(hollow_nodes)]
    with log.open("wb") as output, log.open() as reader:
        checkout = Path(__file__).parent.parent
        keeper = subprocess.Popen(
            command, cwd=checkout, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            sys.stderr.write(reader.read())
            if keeper.poll() is not None:
                raise Failed(f"the test bed did not start\n{tail(log)}")
            if running := status():
                return running
            time.sleep(0.1)
    keeper.terminate()
    raise Failed(f"the test bed was not up after {START_SECONDS} s\n{tail(log)}")


def down() -> bool:
    """Ends the test bed, also one that is still starting, and waits for its end. False: there was none."""
    keeper = _keeper()
    if keeper is None:
        return False
    os.kill(keeper, signal.SIGTERM)
    while _keeper() == keeper:
        time.sleep(0.05)
    return True


def status() -> Up | None:
    try:
        running = msgspec.json.decode(_file().read_bytes(), type=Up)
    except FileNotFoundError:
        return None
    # A file that a killed keeper left behind means nothing.
    return running if running.pid == _keeper() else None


def keep(hollow_nodes: int) -> None:
    """The process in the background: holds a test bed until a signal arrives."""
    signal.signal(signal.SIGTERM, _end)
    with _alone(), ExitStack() as until:
        run = until.enter_context(runs.new("up"))
        if missing := namespace.lacking():
            say(f"there will be no real node, only hollow ones; missing: {'; '.join(missing)}")
            api = until.enter_context(api_server(run, Shape(service_accounts=True)))
            api.start_controllers()
            api.start_scheduler()
        else:
            api = until.enter_context(cluster_with_node(run)).api
        start_hollow_nodes(api, [hollow_node(f"hollow-{number}") for number in range(hollow_nodes)])
        api.wait_for_namespace("default")
        until.enter_context(_announced(api))
        while True:
            signal.pause()


@contextmanager
def _announced(api: ApiServer) -> Iterator[None]:
    nodes = [node["metadata"]["name"] for node in api.call("GET", "/api/v1/nodes")["items"]]
    announcement = Up(os.getpid(), str(api.kubeconfig), str(api.run.folder), nodes)
    draft = _file().with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(announcement))
    draft.rename(_file())
    try:
        yield
    finally:
        _file().unlink()


@contextmanager
def _alone() -> Iterator[None]:
    """The background process holds a lock as long as it runs, and writes its process id into it."""
    with (cache() / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed("another test bed is up, or starting; see: python -m testbed status") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _keeper() -> int | None:
    with (cache() / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            return int(lock.read() or 0) or None
        return None


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _file() -> Path:
    return cache() / "up.json"


def next_steps(running: Up) -> str:
    return f"""\
A real Kubernetes is up, with the nodes {", ".join(running.nodes)}.

    export KUBECONFIG={running.kubeconfig} PATH={kubectl().parent}:$PATH
    kubectl get nodes -o custom-columns='NODE:.metadata.name,GPUS:.status.capacity.nvidia\\.com/gpu'
    kubectl run hello --image=testbed/busybox:1 --image-pull-policy=Never -- sleep 1d

Logs: {running.run}/logs   End it: {sys.executable} -m testbed down
"""
