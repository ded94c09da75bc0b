"""Not collected: `test_nothing_is_left` runs it in a pytest of its own, and ends that pytest while it runs."""

import signal

from testbed.node import Node
from tests.e2e.pods import create, namespace, pod, wait_for_phase


def test_that_runs_until_it_is_ended(node: Node) -> None:
    with namespace(node.api) as name:
        create(node.api, name, pod("runs"))
        wait_for_phase(node.api, name, "runs", "Running")
        print("running in slot", node.api.slot.number, "folder", node.api.run.folder, flush=True)
        signal.pause()
