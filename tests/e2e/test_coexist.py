"""Beside NVIDIA's plugin, on a real kubelet that chooses the GPUs: fractions share what a reservation pod holds.

The plugin is a fake that registers `nvidia.com/gpu`, and answers as NVIDIA's in each of its strategies; everything else
is real, the reservation pods too. Where the kubelet has fewer GPUs to give than Carrel sees, nothing is tried all the
time, and pods are told why they wait.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from carrel.kubernetes.objects.resources import CRDS, LEASES, NAMESPACES
from carrel.manifests import crds, rbac
from testbed.fixtures import shown_run
from testbed.node import Node, cluster_with_node
from testbed.processes import Process
from tests.e2e.carrel_cluster import CarrelCluster
from tests.e2e.carrel_node import a_pod, reading_own_gpus
from tests.e2e.configuration import OURS, configure, own_configuration
from tests.e2e.pods import Json, create, eventually, is_gone, namespace, wait_for_phase
from tests.kit import nvidia_plugin
from tools.image.carrel_image import carrel_image

RESERVATIONS, OLD_RESERVATIONS = "kai-resource-reservation", "runai-reservation"
EXAMPLES = Path(__file__).parents[2] / "examples"
HALF = {"gpu-fraction": "0.5"}
COEXIST = {"nodes": {"plugin": "coexist"}}
GPUS = "{gpus: [{count: 2, model: Tesla-V100, memoryMiB: 16276}]}"


class CoexistNode(CarrelCluster):
    """A real kubelet with the stand-in for NVIDIA's plugin and Carrel's agent beside it."""

    def __init__(self, node: Node, simulated: str) -> None:
        self.node = node
        self._image = carrel_image()
        node.load(self._image)
        gpus = node.api.run.data / "gpus.yaml"
        gpus.write_text(simulated)
        options = ["--node-name", node.name, "--simulate", str(gpus), "--port", "0"]
        self._inside("agent", "-m", "carrel", "agent", "--kubeconfig", str(node.api.kubeconfig), *options)
        self.uuids = [device["uuid"] for device in eventually(self._devices)]
        self._control = node.api.run.data / "nvidia-plugin.txt"
        folder = "/var/lib/kubelet/device-plugins"
        self._inside("nvidia-plugin", nvidia_plugin.__file__, folder, str(self._control), *self.uuids)
        eventually(lambda: self._allocatable() == "2")
        super().__init__(node.api)

    def start_controller(self, *options: str | Path) -> Process:
        return super().start_controller(*options, "--reservation-image", self._image.name)

    @contextmanager
    def plugin(self, unhealthy: Sequence[str] = (), strategy: str = nvidia_plugin.BY_UUID) -> Iterator[None]:
        """NVIDIA's plugin calls these GPUs unhealthy, which Carrel does not; and tells containers in this way."""
        self._tell_plugin(strategy, *unhealthy)
        yield
        self._tell_plugin(nvidia_plugin.BY_UUID)

    def _tell_plugin(self, strategy: str, *unhealthy: str) -> None:
        draft = self._control.with_suffix(".draft")
        draft.write_text(" ".join((strategy, *unhealthy)))
        draft.rename(self._control)
        eventually(lambda: self._allocatable() == str(2 - len(unhealthy)))

    def why(self, namespace: str, name: str) -> str:
        """The last Event that says why the pod waits."""
        events = self.api.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        told = [each for each in events if each["reason"] == "WaitingForGPU" and each["involvedObject"]["name"] == name]
        return str(max(told, key=lambda each: each["lastTimestamp"])["message"]) if told else ""

    def _inside(self, name: str, *arguments: str) -> None:
        self.node.api.start(name, self.node.namespace.inside(sys.executable, *arguments))

    def _devices(self) -> list[Json]:
        path = "/apis/gpu.scheduling/v1/gpunodestatuses"
        items = self.node.api.call("GET", path)["items"]
        return [device for item in items for device in item.get("status", {}).get("devices", [])]

    def _allocatable(self) -> str:
        status = self.node.api.call("GET", f"/api/v1/nodes/{self.node.name}")["status"]
        return str(status["allocatable"].get("nvidia.com/gpu", "0"))

    def reserved(self, namespace: str = RESERVATIONS) -> dict[str, str]:
        """Group → the GPU that its reservation pod reports."""
        pods = self.pods(namespace).values()
        return {
            each["metadata"]["labels"]["runai-gpu-group"]: each["metadata"]["annotations"].get(
                "run.ai/reserve_for_gpu_index", ""
            )
            for each in pods
        }

    def is_held(self, lease: str) -> bool:
        """Whether the books have found the slot's GPU, and not lost it."""
        notes = self.api.call("GET", LEASES.path(OURS, lease))["metadata"]["annotations"]
        return str(json.loads(notes["carrel.dev/reservation"])["state"]) == "held"

    def told(self, namespace: str, name: str) -> str:
        """What the container sees in its environment."""

        def line() -> str:
            words = self.api.kubectl("--namespace", namespace, "logs", name).splitlines()
            return next((each for each in words if each.startswith("NVIDIA_VISIBLE_DEVICES=")), "")

        return eventually(line).partition("=")[2]

    def starts(self, namespace: str, name: str) -> None:
        create(self.api, namespace, reading_own_gpus(a_pod(name, annotations=HALF)))
        wait_for_phase(self.api, namespace, name, "Running")


@contextmanager
def coexist_node(simulated: str = GPUS) -> Iterator[CoexistNode]:
    with shown_run("coexist") as run, cluster_with_node(run) as node:
        for crd in crds():
            node.api.call("POST", CRDS.path(), crd)
        node.api.call("POST", NAMESPACES.path(), {"metadata": {"name": OURS}})
        rules = {"kind": "List", "apiVersion": "v1", "items": list(rbac())}
        node.api.kubectl("apply", "--filename", "-", given=json.dumps(rules))
        for name in ("default", RESERVATIONS):
            node.api.wait_for_namespace(name)
        configure(node.api, COEXIST)
        yield CoexistNode(node, simulated)


@pytest.fixture(scope="module")
def coexist() -> Iterator[CoexistNode]:
    with coexist_node() as node:
        yield node


def test_two_halves_share_the_reported_gpu_a_third_gets_another_and_the_reservations_end_with_them(
    coexist: CoexistNode,
) -> None:
    with namespace(coexist.api) as ours:
        for name in ("a", "b", "c"):
            coexist.starts(ours, name)

        gpus = [coexist.told(ours, name) for name in ("a", "b", "c")]
        assert gpus[0] == gpus[1] != gpus[2]
        assert sorted({gpus[0], gpus[2]}) == sorted(coexist.uuids)
        # The agent says which GPUs they are, before the programs in the reservation pods have started.
        eventually(lambda: coexist.reserved() == {"gpu-real-node-0": gpus[0], "gpu-real-node-1": gpus[2]})

        def group_of(name: str) -> str | None:
            labels: dict[str, str] = coexist.pods(ours)[name]["metadata"].get("labels", {})
            return labels.get("runai-gpu-group")

        eventually(lambda: [*map(group_of, "abc")] == ["gpu-real-node-0", "gpu-real-node-0", "gpu-real-node-1"])

        # A pod that asks the kubelet itself has to wait: all GPUs are in use.
        create(coexist.api, ours, a_pod("whole", {"nvidia.com/gpu": "1"}))
        for name in ("a", "b", "c"):
            coexist.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/{name}")
        eventually(lambda: not coexist.reserved(), limit_s=180)

        wait_for_phase(coexist.api, ours, "whole", "Running")
        assert coexist.told(ours, "whole") in coexist.uuids
        path = f"/api/v1/namespaces/{ours}/pods/whole"
        coexist.api.call("DELETE", path)
        eventually(lambda: is_gone(coexist.api, path))
        eventually(lambda: not coexist.held() and not coexist.reserved(), limit_s=120)


def test_a_deleted_reservation_pod_is_created_again_with_the_same_gpu(coexist: CoexistNode) -> None:
    with namespace(coexist.api) as ours:
        coexist.starts(ours, "a")
        gpu = coexist.told(ours, "a")
        ((name, before),) = coexist.pods(RESERVATIONS).items()
        coexist.api.call("DELETE", f"/api/v1/namespaces/{RESERVATIONS}/pods/{name}")

        def is_repaired() -> bool:
            after = coexist.pods(RESERVATIONS).get(name)
            is_new = after is not None and after["metadata"]["uid"] != before["metadata"]["uid"]
            return is_new and coexist.reserved() == {"gpu-real-node-0": gpu} and coexist.is_held("gpu-real-node-0")

        eventually(is_repaired, limit_s=180)
        # The pod went on as if nothing had happened, and another may join it.
        coexist.starts(ours, "b")
        assert coexist.told(ours, "b") == gpu
    eventually(lambda: not coexist.reserved(), limit_s=180)


@pytest.mark.parametrize("strategy", [nvidia_plugin.BY_INDEX, nvidia_plugin.BY_MOUNTS, nvidia_plugin.BY_CDI])
def test_fractions_run_where_the_program_in_the_reservation_pod_cannot_see_its_gpu(
    coexist: CoexistNode, strategy: str
) -> None:
    """The kubelet's own list says which GPU the reservation pod has."""
    eventually(lambda: not coexist.reserved(), limit_s=180)
    with coexist.plugin(strategy=strategy), namespace(coexist.api) as ours:
        coexist.starts(ours, "a")

        assert coexist.told(ours, "a") in coexist.uuids
        assert list(coexist.reserved().values()) == [""]
    eventually(lambda: not coexist.reserved(), limit_s=180)


def test_a_gpu_that_only_nvidias_plugin_calls_unhealthy_is_no_slot(coexist: CoexistNode) -> None:
    with coexist.plugin(unhealthy=coexist.uuids[:1]), namespace(coexist.api) as ours:
        coexist.starts(ours, "a")
        create(coexist.api, ours, reading_own_gpus(a_pod("b", annotations={"gpu-fraction": "0.9"})))
        made = {each["metadata"]["uid"] for each in coexist.pods(RESERVATIONS).values()}

        def is_told() -> bool:
            made.update(each["metadata"]["uid"] for each in coexist.pods(RESERVATIONS).values())
            return "the kubelet of real-node has 1 of 2 GPUs to give, and they are in use" in coexist.why(ours, "b")

        eventually(is_told)
        assert len(made) == 1, "no reservation pod was made in vain"
        assert coexist.told(ours, "a") == coexist.uuids[1]
    eventually(lambda: not coexist.reserved(), limit_s=180)


def test_a_pod_that_had_a_gpu_before_carrel_keeps_it_and_nobody_is_promised_it(coexist: CoexistNode) -> None:
    with namespace(coexist.api) as ours:
        stranger = a_pod("stranger", {"nvidia.com/gpu": "1"})
        stranger["spec"] |= {"nodeName": coexist.node.name}
        create(coexist.api, ours, stranger)
        wait_for_phase(coexist.api, ours, "stranger", "Running")
        coexist.starts(ours, "a")
        assert coexist.told(ours, "a") != coexist.told(ours, "stranger")

        create(coexist.api, ours, reading_own_gpus(a_pod("b", annotations={"gpu-fraction": "0.9"})))
        eventually(lambda: f"{ours}/stranger has GPUs of {coexist.node.name}" in coexist.why(ours, "b"))
        assert len(coexist.reserved()) == 1
    eventually(lambda: not coexist.reserved(), limit_s=180)


def test_a_memory_share_and_a_fraction_share_one_gpu(coexist: CoexistNode) -> None:
    """Of two dialects: one ledger, one reservation pod, one GPU."""
    with namespace(coexist.api) as ours:
        coexist.starts(ours, "half")
        create(coexist.api, ours, reading_own_gpus(a_pod("memory", {"aliyun.com/gpu-mem": "8138"})))
        wait_for_phase(coexist.api, ours, "memory", "Running")

        assert coexist.told(ours, "memory") == coexist.told(ours, "half")
        gpu = coexist.told(ours, "half")
        eventually(lambda: list(coexist.reserved().values()) == [gpu])


def test_under_kais_old_names_a_fraction_gets_its_gpu_and_kais_tools_find_it(coexist: CoexistNode) -> None:
    eventually(lambda: not coexist.reserved(), limit_s=180)
    coexist.api.kubectl("apply", "--filename", str(EXAMPLES / "kai-old-names.yaml"))
    coexist.api.wait_for_namespace(OLD_RESERVATIONS)
    coexist.controller.stop()
    own = own_configuration(coexist.api, "old-kai", {**COEXIST, "reservations": {"names": "old-kai"}})
    coexist.start_controller("--kubeconfig", coexist.api.kubeconfig, *own)
    with namespace(coexist.api) as ours:
        coexist.starts(ours, "a")
        gpu = coexist.told(ours, "a")

        # It writes this on itself, by its own account and role.
        eventually(lambda: coexist.reserved(OLD_RESERVATIONS) == {"gpu-real-node-0": gpu})
        assert not coexist.reserved()
        (name,) = coexist.pods(OLD_RESERVATIONS)
        assert name.startswith(f"runai-reservation-gpu-{coexist.node.name}-")

        def shared() -> Json:
            prefix = coexist.pods(ours)["a"]["metadata"]["annotations"]["runai/shared-gpu-configmap"]
            maps = coexist.api.call("GET", f"/api/v1/namespaces/{ours}/configmaps")["items"]
            return next((each["data"] for each in maps if each["metadata"]["name"] == f"{prefix}-0"), {})

        assert eventually(shared)["NVIDIA_VISIBLE_DEVICES"] == gpu
    eventually(lambda: not coexist.reserved(OLD_RESERVATIONS), limit_s=180)
