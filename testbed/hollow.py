"""Hollow nodes: any number of nodes with simulated GPUs that exist only as objects.

One program, `python -m testbed.hollow <file>`, simulates all their kubelets (`testbed.kubelets`). GPUs are shown as
extended resources and, once that kind is defined, as GpuNodeStatus.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from carrel.cluster.options import utc_now
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.kubernetes.reflector import Informers
from carrel.ledger.gpus import Gpu, MiB, Node
from testbed.control_plane import ApiServer
from testbed.kubelets import SimulatedKubelets
from testbed.processes import Process


class HollowNodes(msgspec.Struct):
    """What the program is given, as JSON."""

    kubeconfig: str
    nodes: list[Node]


def hollow_node(name: str, gpus: int = 4) -> Node:
    """A node of equal GPUs, all in one NVLink island."""
    model, memory = "NVIDIA-A100-SXM4-40GB", MiB(40960)
    indices = range(gpus)
    return Node(
        NodeName(name),
        tuple(
            Gpu(GpuUuid(f"GPU-{name}-{index}"), NodeName(name), index, model, memory, "0", bandwidth_gbps=600)
            for index in indices
        ),
    )


def hollow_command(file: Path, kubeconfig: Path, nodes: Sequence[Node]) -> list[str | Path]:
    """Writes the file and returns the command that reads it."""
    file.touch(mode=0o600)
    file.write_bytes(msgspec.json.encode(HollowNodes(str(kubeconfig), list(nodes))))
    checkout = Path(__file__).parent.parent
    return ["env", f"PYTHONPATH={checkout}", sys.executable, "-m", "testbed.hollow", file]


def start_hollow_nodes(api: ApiServer, nodes: Sequence[Node]) -> Process:
    """Returns when the controllers and the schedulers see all of them ready."""
    process = api.start("hollow", hollow_command(api.run.data / "hollow.json", api.kubeconfig, nodes))
    names = {node.name for node in nodes}

    def all_ready() -> bool:
        present = api.call("GET", NODES.path())["items"]
        # Admission taints a new node; the node lifecycle controller takes the taint off when the node is ready.
        return names <= {node["metadata"]["name"] for node in present if not node["spec"].get("taints")}

    process.wait_until("ready", all_ready)
    return process


async def main(hollow: HollowNodes) -> None:
    client = Client(HttpTransport(access_to(Path(hollow.kubeconfig), {})))
    async with contextlib.aclosing(client), asyncio.TaskGroup() as tasks:
        informers = Informers(client)
        pods = informers.watch(PODS, Selection(fields="spec.nodeName!="))
        kubelets = SimulatedKubelets(client, hollow.nodes, pods, utc_now)
        tasks.create_task(informers.run())
        tasks.create_task(kubelets.run())


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=HollowNodes)))
