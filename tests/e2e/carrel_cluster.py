"""A real control plane with hollow GPU nodes, a real kube-scheduler for `gpu-scheduler`, and Carrel as processes."""

import json
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from carrel.dialects.booking_objects import BOOKINGS
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.objects.resources import CRDS, NAMESPACES
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.manifests import crds
from carrel.scheduling.scheduler_config import Extender, scheduler_config
from testbed.control_plane import ApiServer, Shape
from testbed.control_plane import api_server as start_api_server
from testbed.fixtures import shown_run
from testbed.hollow import start_hollow_nodes
from testbed.processes import Process
from tests.e2e.configuration import NOTHING, OURS, configure, own_configuration
from tests.kit.ports import free_port


def a_node(name: str, memories: Sequence[int], islands: str = "", **labels: str) -> Node:
    """`islands="..aa"`: GPUs 2 and 3 are linked, 0 and 1 are not."""
    letters = islands or "." * len(memories)
    gpus = tuple(
        Gpu(GpuUuid(f"GPU-{name}-{i}"), NodeName(name), i, "NVIDIA-RTX-A6000", MiB(memory), letter.strip("."), 600)
        for i, (memory, letter) in enumerate(zip(memories, letters, strict=True))
    )
    return Node(NodeName(name), gpus, labels)


def a_booking(name: str, user: str, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    """One that runs now."""
    times = {"start": "2026-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z"}
    body = {"metadata": {"name": name}, "spec": {"user": user, "gpus": gpus, **times, **spec}}
    return {"apiVersion": BOOKINGS.api_version, "kind": BOOKINGS.kind, **body}


def _is_ready(url: str) -> bool:
    anybody = ssl._create_unverified_context() if url.startswith("https:") else None  # kube-scheduler does verify
    with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=anybody) as answer:
        return bool(answer.status == 200)


class CarrelCluster:
    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self._port = free_port()
        self.extender = self.start_extender()
        self.controller = self.start_controller("--kubeconfig", api.kubeconfig)
        self._start_scheduler("gpu-scheduler", self.extender_url)

    @property
    def extender_url(self) -> str:
        """Of the first extender, also after it was started again."""
        return f"http://127.0.0.1:{self._port}"

    def start_extender(self, name: str = "extender", port: int = 0, *options: str | Path) -> Process:
        port = port or self._port
        command: list[str | Path] = [sys.executable, "-m", "carrel", "extender", "--kubeconfig", self.api.kubeconfig]
        process = self.api.start(name, [*command, "--port", str(port), *options])
        scheme = "https" if "--tls-folder" in options else "http"
        process.wait_until("ready", lambda: _is_ready(f"{scheme}://127.0.0.1:{port}"))
        return process

    def start_another_scheduler(self, name: str) -> None:
        """A kube-scheduler with an extender of its own, beside the others."""
        port = free_port()
        own = own_configuration(self.api, name, {"pods": {"schedulers": [name]}})
        self.start_extender(f"extender-of-{name}", port, *own)
        self._start_scheduler(name, f"http://127.0.0.1:{port}")

    def _start_scheduler(self, name: str, extender: str) -> None:
        self.api.start_scheduler(name, scheduler_config(Extender(extender))["extenders"])

    def start_controller(self, *options: str | Path) -> Process:
        command = [sys.executable, "-m", "carrel", "controller", "--port", "0", *options]
        return self.api.start("controller", command)

    def book(self, name: str, user: str, gpus: int = 1, **spec: Any) -> None:
        """A booking that runs now, as the booking service writes it."""
        self.api.call("POST", BOOKINGS.path(), a_booking(name, user, gpus, **spec))

    # --- what the cluster says, read anew ----------------------------------------------------------------------------

    def pods(self, namespace: str) -> dict[str, dict[str, Any]]:
        items = self.api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def held(self) -> dict[str, dict[str, int | None]]:
        """GPU (`n1-0`) → uid → MiB, None for the whole GPU, from nothing but the Leases."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases"
        leases = {lease["metadata"]["name"]: lease for lease in self.api.call("GET", path)["items"]}
        return {
            name.removeprefix("gpu-"): {
                uid: share.get("mib")
                for uid, share in json.loads(lease["metadata"]["annotations"]["carrel.dev/shares"]).items()
            }
            for name, lease in leases.items()
            if "carrel.dev/shares" in lease["metadata"].get("annotations", {})
        }


@contextmanager
def carrel_cluster(
    name: str, nodes: Sequence[Node], configuration: Mapping[str, Any] = NOTHING
) -> Iterator[CarrelCluster]:
    with shown_run(name) as run, start_api_server(run, Shape(service_accounts=True, shows_certificate=True)) as api:
        api.start_controllers()
        for crd in crds():
            api.call("POST", CRDS.path(), crd)
        api.call("POST", NAMESPACES.path(), {"metadata": {"name": OURS}})
        configure(api, configuration)
        start_hollow_nodes(api, nodes)
        api.wait_for_namespace("default")
        yield CarrelCluster(api)
