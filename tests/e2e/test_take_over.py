"""A node that gpushare's programs served before Carrel, and serve again while Carrel is away; on a real kubelet.

gpushare's extender is this test: it writes its annotations on a pod and binds it. Its plugin is a fake that answers the
kubelet as the real one does. kube-scheduler is real, and asks at gpushare's addresses, with gpushare's configuration.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from testbed.node import Node
from testbed.processes import Process
from tests.e2e.carrel_node import MEM, CarrelNode, a_pod, node_for_carrel
from tests.e2e.pods import Json, create, eventually, is_gone, namespace, wait_for_phase
from tests.e2e.rules_cluster import TRUSTED
from tests.e2e.webhook import UserClient, install_policies
from tests.kit import gpushare_plugin

CONFIGURATION = Path(__file__).parents[2] / "examples" / "gpushare-scheduler-config.yaml"
MIB = 1016
"""Of each of the two GPUs: so few devices that no kubelet stalls on them."""
GPUS = [{"count": 2, "model": "Tesla-V100", "memoryMiB": MIB}]
MARK = "gpushare"
"""The scheduler of pods that gpushare places: nobody else serves it."""


def wait_for_memory(node: Node, mib: int) -> None:
    """Until the kubelet has so much to give: 0 after a plugin has gone."""

    def is_it() -> bool:
        status = node.api.call("GET", f"/api/v1/nodes/{node.name}")["status"]
        return int(status["allocatable"].get(MEM, "0")) == mib

    eventually(is_it)


class Gpushare:
    """Its plugin on the node, and what its extender does."""

    def __init__(self, node: Node) -> None:
        self.node, self.api = node, node.api
        self._control = node.api.run.data / "gpushare-plugin.txt"
        self._plugin: Process | None = None

    def start(self) -> None:
        folder = "/var/lib/kubelet/device-plugins"
        found = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"  # this project is no installed package
        program = ("env", found, sys.executable, "-m", gpushare_plugin.__name__)
        arguments = (folder, str(self._control), str(MIB), "GPU-a", "GPU-b")
        self._plugin = self.api.start("gpushare-plugin", self.node.namespace.inside(*program, *arguments))
        wait_for_memory(self.node, 2 * MIB)

    def stop(self) -> None:
        assert self._plugin is not None
        self._plugin.stop()
        wait_for_memory(self.node, 0)

    def place(self, ours: str, name: str, mib: int, index: int) -> Json:
        """The running pod. Its annotations are those of gpushare's extender, and then of its plugin."""
        self.expect(index)
        self.bind(ours, name, mib, index)
        placed = wait_for_phase(self.api, ours, name, "Running")
        assigned = {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}}
        self.api.call("PATCH", f"/api/v1/namespaces/{ours}/pods/{name}", assigned)
        return placed

    def expect(self, index: int) -> None:
        """The next pod that the plugin starts has this GPU."""
        self._control.write_text(str(index))

    def bind(self, ours: str, name: str, mib: int, index: int) -> None:
        """What its extender does."""
        create(self.api, ours, a_pod(name, {MEM: str(mib)}, schedulerName=MARK))
        path = f"/api/v1/namespaces/{ours}/pods/{name}"
        told = {
            "ALIYUN_COM_GPU_MEM_IDX": str(index),
            "ALIYUN_COM_GPU_MEM_DEV": str(MIB),
            "ALIYUN_COM_GPU_MEM_POD": str(mib),
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(time.time_ns()),
        }
        self.api.call("PATCH", path, {"metadata": {"annotations": told}})
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node.name}
        self.api.call("POST", f"{path}/binding", {"metadata": {"name": name}, "target": target})


class CarrelAfterGpushare(CarrelNode):
    """kube-scheduler keeps gpushare's configuration; only who answers has changed."""

    def _start_scheduler(self, name: str, extender: str) -> None:
        (configured,) = yaml.safe_load(CONFIGURATION.read_text())["extenders"]
        url = configured["urlPrefix"].replace("http://127.0.0.1:39999", extender)
        assert url == f"{extender}/gpushare-scheduler"
        self.api.start_scheduler(name, [{**configured, "urlPrefix": url}])

    def leave(self) -> None:
        for process in (self.extender, self.controller, self.agent):
            process.stop()
        wait_for_memory(self.node, 0)

    def come_back(self) -> None:
        self.agent = self.start_agent()
        wait_for_memory(self.node, 2 * MIB)
        self.extender = self.start_extender()
        self.controller = self.start_controller("--kubeconfig", self.api.kubeconfig)

    def adopt(self, *options: str) -> dict[str, tuple[list[int], str]]:
        """Pod → its GPUs, and what was done about it."""
        command = [sys.executable, "-m", "carrel", "adopt", "--kubeconfig", str(self.api.kubeconfig), "-o", "json"]
        printed = json.loads(subprocess.check_output([*command, *options], text=True))
        return {each["pod"]: (each["gpus"], each["result"]) for each in printed}

    def why(self, ours: str, name: str) -> str:
        """What kube-scheduler says about a pod that waits."""
        conditions = self.pods(ours)[name]["status"].get("conditions", ())
        return next((str(each.get("message", "")) for each in conditions if each["type"] == "PodScheduled"), "")

    def is_told(self, ours: str, name: str, index: int, mib: int) -> bool:
        """Whether its annotations are gpushare's, and its container sees that GPU."""
        notes = self.pods(ours)[name]["metadata"]["annotations"]
        assert (notes["ALIYUN_COM_GPU_MEM_IDX"], notes["ALIYUN_COM_GPU_MEM_DEV"]) == (str(index), str(MIB))
        assert (notes["ALIYUN_COM_GPU_MEM_POD"], notes["ALIYUN_GPU_ID"]) == (str(mib), str(index))
        seen = self.told(ours, name)
        assert seen["NVIDIA_VISIBLE_DEVICES"] == self.devices()[index]["uuid"]
        assert (seen["ALIYUN_COM_GPU_MEM_IDX"], seen["ALIYUN_COM_GPU_MEM_CONTAINER"]) == (str(index), str(mib))
        return True


@pytest.fixture
def gpushare() -> Iterator[Gpushare]:
    with node_for_carrel("take-over", {"memory": {"resource": "plugin"}}) as node:
        yield Gpushare(node)


def test_what_gpushare_gave_is_never_given_again(gpushare: Gpushare) -> None:
    api = gpushare.api
    with namespace(api) as ours:

        def asks(name: str, mib: int) -> None:
            create(api, ours, a_pod(name, {MEM: str(mib)}))

        def end(name: str) -> None:
            path = f"/api/v1/namespaces/{ours}/pods/{name}"
            api.call("DELETE", path)
            eventually(lambda: is_gone(api, path))

        # Before Carrel: 508 MiB of one GPU and 762 of the other.
        gpushare.start()
        old = [gpushare.place(ours, f"old-{index}", mib, index) for index, mib in ((0, 508), (1, 762))]
        gpushare.stop()

        # Carrel comes. What is left is given; what they have is not, recorded or not.
        carrel = CarrelAfterGpushare(gpushare.node, GPUS)
        asks("too-large", 762)
        eventually(lambda: "Insufficient GPU Memory in one device" in carrel.why(ours, "too-large"))

        # gpushare's extender was forgotten, and places one more: the kubelet refuses it, and it is told by whom.
        gpushare.bind(ours, "stray", 100, 0)
        eventually(lambda: carrel.pods(ours)["stray"]["status"]["phase"] == "Failed")
        why = f"{ours}/stray was placed by another scheduler ({MARK}): no Lease promises it GPU 0"
        assert why in carrel.pods(ours)["stray"]["status"]["message"]
        end("stray")

        asks("beside-0", 508)
        asks("beside-1", 254)
        for name, index, mib in (("beside-0", 0, 508), ("beside-1", 1, 254)):
            wait_for_phase(api, ours, name, "Running")
            assert carrel.is_told(ours, name, index, mib)
        assert uids_held(carrel).isdisjoint(uids_of(old))

        # They are recorded, once.
        results = {f"{ours}/old-0": ([0], "recorded"), f"{ours}/old-1": ([1], "recorded")}
        would = {pod: (gpus, "would be recorded") for pod, (gpus, _) in results.items()}
        assert (carrel.adopt("--dry-run"), carrel.adopt(), carrel.adopt()) == (would, results, {})
        held = carrel.held()
        assert [held[f"{carrel.node.name}-{index}"][uid] for index, uid in enumerate(uids_of(old))] == [508, 762]

        # One ends: its memory goes to the pod that waited for it.
        end("old-1")
        wait_for_phase(api, ours, "too-large", "Running")
        assert carrel.is_told(ours, "too-large", 1, 762)

        # Carrel is away, and gpushare places a pod where one of Carrel's has ended.
        carrel.leave()
        ended = uids_of([carrel.pods(ours)[name] for name in ("beside-0", "beside-1")])
        end("beside-0")
        end("beside-1")
        gpushare.start()
        between = gpushare.place(ours, "between", 300, 0)
        gpushare.stop()
        carrel.come_back()
        asks("too-large-again", 400)
        eventually(lambda: "Insufficient GPU Memory in one device" in carrel.why(ours, "too-large-again"))
        eventually(lambda: uids_held(carrel).isdisjoint(ended), 120)
        asks("fits", 208)
        wait_for_phase(api, ours, "fits", "Running")
        assert carrel.is_told(ours, "fits", 0, 208)
        assert carrel.adopt() == {f"{ours}/between": ([0], "recorded")}

        # All of those from before end, and nobody else has noticed anything.
        for name in ("between", "old-0"):
            end(name)
        wait_for_phase(api, ours, "too-large-again", "Running")
        assert carrel.is_told(ours, "too-large-again", 0, 400)
        eventually(lambda: set(uids_of([*old, between])).isdisjoint(uids_held(carrel)))
        assert [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"]
        running = {name: pod["status"]["phase"] for name, pod in carrel.pods(ours).items()}
        assert running == dict.fromkeys(("too-large", "fits", "too-large-again"), "Running")


def test_while_gpushares_plugin_stays_carrel_places_its_pods_and_the_plugin_marks_them(gpushare: Gpushare) -> None:
    """Agents only report, and Carrel's policies are there. The stand-in cannot write: its exact call is replayed."""
    api = gpushare.api
    with namespace(api) as ours:
        gpushare.start()
        gpushare.place(ours, "old", 508, 0)
        carrel = CarrelAfterGpushare(gpushare.node, GPUS, "--report-only")
        install_policies(api, TRUSTED, is_asked=False)
        assert carrel.status()["memoryUnit"] == "MiB"
        assert carrel.adopt() == {f"{ours}/old": ([0], "recorded")}

        gpushare.expect(1)
        create(api, ours, a_pod("new", {MEM: "762"}))
        wait_for_phase(api, ours, "new", "Running")
        path = f"/api/v1/namespaces/{ours}/pods/new"
        assert api.call("GET", path)["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
        plugin = UserClient(api, "system:serviceaccount:kube-system:gpushare-device-plugin")
        marks = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(time.time_ns())}
        status, answer = plugin.call("PATCH", path, {"metadata": {"annotations": marks}})
        assert status == 200, answer
        assert carrel.told(ours, "new")["ALIYUN_COM_GPU_MEM_IDX"] == "1"


def uids_of(pods: list[Json]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods]


def uids_held(carrel: CarrelNode) -> set[str]:
    return {uid for shares in carrel.held().values() for uid in shares}
