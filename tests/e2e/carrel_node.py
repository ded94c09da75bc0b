"""A real kubelet with Carrel's agent and simulated GPUs, and the rest of Carrel."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from carrel.dialects import gpushare, visible_devices
from carrel.kubernetes.objects.resources import CRDS, NAMESPACES
from carrel.manifests import crds, rbac
from testbed.control_plane import ApiServer
from testbed.fixtures import shown_run
from testbed.node import Node, cluster_with_node
from testbed.processes import Failed, Process
from tests.e2e.carrel_cluster import CarrelCluster
from tests.e2e.configuration import NOTHING, OURS, configure
from tests.e2e.pods import Json, create, eventually, pod, wait_for_phase
from tests.kit.objects import pod_from

MEM, COUNT, WHOLE = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "nvidia.com/gpu"
TWO_GPUS = [{"count": 2, "model": "Tesla-V100", "memoryMiB": 16276, "perIsland": 2, "bandwidthGBps": 300}]
TELL = "env | grep -E '^(NVIDIA|CUDA|ALIYUN|CGPU)' | sort; echo told; sleep 3600"


class CarrelNode(CarrelCluster):
    def __init__(self, node: Node, gpus: Sequence[Mapping[str, Any]], *options: str) -> None:
        """`options` of the agent."""
        self.node = node
        self.options = options
        self.gpus = node.api.run.data / "gpus.yaml"
        self.simulate(gpus)
        self.agent = self.start_agent()
        eventually(lambda: self.allocatable(MEM) > 0)
        super().__init__(node.api)

    def simulate(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        draft = self.gpus.with_suffix(".draft")
        draft.write_text(yaml.safe_dump({"gpus": list(gpus)}))
        draft.rename(self.gpus)

    def start_agent(self, *more: str | Path) -> Process:
        """With the rights of its ServiceAccount, and no more."""
        kubeconfig = self._kubeconfig()
        options: list[str | Path] = ["--kubeconfig", kubeconfig, "--node-name", self.node.name, "--port", "0"]
        options += ["--cgroups", self.node.namespace.cgroups]
        program = (sys.executable, "-m", "carrel", "agent", "--simulate", self.gpus)
        command = self.node.namespace.inside(*program, *options, *self.options, *more)
        return self.node.api.start("agent", command)

    def withdraw(self) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [sys.executable, "-m", "carrel", "withdraw", "--kubeconfig", self._kubeconfig()]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _kubeconfig(self) -> Path:
        """With a token of its ServiceAccount that is bound to the node, as the kubelet gives it to a pod there."""
        uid = self.node.api.call("GET", f"/api/v1/nodes/{self.node.name}")["metadata"]["uid"]
        return kubeconfig_of(
            self.node.api, "agent", {"apiVersion": "v1", "kind": "Node", "name": self.node.name, "uid": uid}
        )

    def kill_agent(self) -> None:
        self.agent.program.kill()
        self.agent.program.wait()

    def registrations(self, resource: str) -> int:
        """How often the kubelet has taken the agent's plugin."""
        return self.agent.log.read_text().count(f"plugin_registered resource={resource}")

    # --- what is seen ------------------------------------------------------------------------------------------------

    def allocatable(self, resource: str) -> int:
        status = self.node.api.call("GET", f"/api/v1/nodes/{self.node.name}")["status"]
        return int(status["allocatable"].get(resource, "0"))

    def devices(self) -> list[Json]:
        found: list[Json] = self.status().get("devices", [])
        return found

    def status(self) -> Json:
        path = f"/apis/gpu.scheduling/v1/gpunodestatuses/{self.node.name}"
        found: Json = self.node.api.call("GET", path).get("status", {})
        return found

    def run(self, namespace: str, manifest: Json) -> tuple[Json, dict[str, str]]:
        """The running pod, and the environment that each of its containers tells."""
        create(self.api, namespace, manifest)
        name = manifest["metadata"]["name"]
        placed = wait_for_phase(self.api, namespace, name, "Running")
        return placed, self.told(namespace, name)

    def told(self, namespace: str, name: str, container: str = "main") -> dict[str, str]:
        def lines() -> list[str]:
            try:
                logs = self.api.kubectl("--namespace", namespace, "logs", name, "--container", container).splitlines()
            except Failed:
                return []  # a container that joins a running pod is not there at once
            return logs if logs and logs[-1] == "told" else []

        return dict(line.split("=", 1) for line in eventually(lines)[:-1])


def kubeconfig_of(api: ApiServer, component: str, bound: Json | None = None) -> Path:
    """With a token of the component's ServiceAccount."""
    asked: Json = {"spec": {"expirationSeconds": 7200, **({"boundObjectRef": bound} if bound else {})}}
    path = f"/api/v1/namespaces/{OURS}/serviceaccounts/carrel-{component}/token"
    token = api.call("POST", path, asked)["status"]["token"]
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["users"] = [{**each, "user": {"token": token}} for each in config["users"]]
    file = api.run.data / f"{component}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


def a_pod(
    name: str, limits: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None, **spec: Any
) -> Json:
    """It asks for its GPUs, and tells what it sees of them."""
    manifest = pod(name, TELL, limits, **{"schedulerName": "gpu-scheduler", **spec})
    manifest["metadata"]["annotations"] = dict(annotations or {})
    return manifest


def reading_own_gpus(manifest: Json) -> Json:
    """With the environment that Carrel's webhook gives a pod."""
    asking = pod_from(manifest)
    manifest["spec"]["containers"] = [
        visible_devices.shown(
            each, visible_devices.Sight("carrel.dev/devices", "carrel.dev/devices"), gpushare.variables(asking, each)
        )
        for each in manifest["spec"]["containers"]
    ]
    return manifest


@contextmanager
def node_for_carrel(name: str, configuration: Mapping[str, Any] = NOTHING) -> Iterator[Node]:
    """All that Carrel needs of a cluster is there, with its configuration; Carrel is not."""
    with shown_run(name) as run, cluster_with_node(run) as node:
        for crd in crds():
            node.api.call("POST", CRDS.path(), crd)
        node.api.call("POST", NAMESPACES.path(), {"metadata": {"name": OURS}})
        node.api.wait_for_namespace(OURS)
        configure(node.api, configuration)
        rules = {"kind": "List", "apiVersion": "v1", "items": list(rbac())}
        node.api.kubectl("apply", "--filename", "-", given=json.dumps(rules))
        node.api.wait_for_namespace("default")
        yield node


@contextmanager
def carrel_node(
    name: str, gpus: Sequence[Mapping[str, Any]] = TWO_GPUS, configuration: Mapping[str, Any] = NOTHING
) -> Iterator[CarrelNode]:
    with node_for_carrel(name, configuration) as node:
        yield CarrelNode(node, gpus)
