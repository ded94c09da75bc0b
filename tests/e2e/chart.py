"""The chart, with the real helm: rendered, and installed on a real node."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from testbed.build import component, release
from testbed.clients import helm as helm_program
from testbed.control_plane import ApiServer
from testbed.fixtures import shown_run
from testbed.images import program_image
from testbed.node import Node, cluster_with_node
from testbed.processes import Failed
from tests.e2e.pods import Json, eventually
from tools.image.carrel_image import carrel_image

CHART = Path(__file__).parents[2] / "charts/carrel"
NAMESPACE = "gpus"
"""Not `carrel`: the manifests name that, and the chart must put another in its place everywhere."""
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
COMPONENT = "app.kubernetes.io/component"
DEPLOYMENT_COUNTS = ("updatedReplicas", "readyReplicas")
DAEMON_SET_COUNTS = ("updatedNumberScheduled", "numberReady")
STARTING_S = 300
"""A dozen processes start on a machine that may be busy."""


def helm(*words: str | Path, api: ApiServer | None = None) -> str:
    """What helm prints. Raises `Failed` with its error message."""
    cluster = ["--kubeconfig", str(api.kubeconfig)] if api else []
    command = [str(helm_program()), *map(str, words), *cluster]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"KUBECONFIG": ""})
    if outcome.returncode != 0:
        # What a test pod printed is on stdout.
        raise Failed(f"helm {' '.join(map(str, words))}: {outcome.stderr.strip()}\n{outcome.stdout.strip()}")
    return outcome.stdout


def rendered(*options: str | Path, version: str = "v1.33.0", namespace: str = NAMESPACE) -> list[Json]:
    """The objects of `helm template`."""
    text = helm("template", "carrel", CHART, "--namespace", namespace, "--kube-version", version, *options)
    return [each for each in yaml.safe_load_all(text) if each]


def by_name(objects: Sequence[Json]) -> dict[tuple[str, str, str], Json]:
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in objects}


def is_asked(api: ApiServer, configuration: str = "carrel") -> bool:
    """Whether the API server asks the webhook about GPU pods: from its first answer on."""
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{configuration}"
    entries = {each["name"]: each for each in api.call("GET", path)["webhooks"]}
    assert entries["gpu-pods.carrel.dev"]["failurePolicy"] == "Fail"
    return bool(entries["gpu-pods.carrel.dev"].get("rules"))


class InstalledChart:
    def __init__(self, node: Node, *, has_image: bool = True) -> None:
        self.node, self.api = node, node.api
        node.load(program_image(f"registry.k8s.io/kube-scheduler:v{release()}", component("kube-scheduler")))
        if has_image:
            node.load(carrel_image())
        self._provide_volume()

    def helm(self, *words: str | Path) -> str:
        return helm(*words, "--namespace", NAMESPACE, api=self.api)

    def _provide_volume(self) -> None:
        """As a cluster without a provisioner has it. Its folder is open to the service, which is not root."""
        folder = self.node.namespace.path("/var/bookings")
        folder.mkdir()
        folder.chmod(0o777)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/var/bookings"},
        }
        self.api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "bookings"}, "spec": spec})

    def wait_ready(self) -> dict[str, int]:
        """Until all pods are, and none of an older revision is left: component → how many."""

        def all_ready() -> dict[str, int]:
            pods = self.pods()
            found: dict[str, int] = {}
            for pod in pods:
                conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
                if conditions.get("Ready") != "True" or "deletionTimestamp" in pod["metadata"]:
                    return {}
                part = pod["metadata"]["labels"][COMPONENT]
                found[part] = found.get(part, 0) + 1
            return found if self._rolled_out() and is_asked(self.api) else {}

        return eventually(all_ready, STARTING_S)

    def pods(self) -> list[Json]:
        found: list[Json] = self.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return found

    def _rolled_out(self) -> bool:
        deployments, daemon_sets = (self.get(f"{APPS}/{kind}")["items"] for kind in ("deployments", "daemonsets"))
        return all(
            each["status"].get("observedGeneration") == each["metadata"]["generation"]
            for each in (*deployments, *daemon_sets)
        ) and all(
            numbers.get(updated, 0) == numbers.get(ready, 0) == wanted
            for numbers, updated, ready, wanted in (
                *((each["status"], *DEPLOYMENT_COUNTS, each["spec"]["replicas"]) for each in deployments),
                *(
                    (each["status"], *DAEMON_SET_COUNTS, each["status"]["desiredNumberScheduled"])
                    for each in daemon_sets
                ),
            )
        )

    @contextmanager
    def away(self, component: str) -> Iterator[None]:
        """None of its pods runs within the block. Does not wait until they are back."""
        if component == "agent":
            path, before = f"{APPS}/daemonsets/carrel-agent", {"template": {"spec": {"nodeSelector": {"none": None}}}}
            none: Json = {"template": {"spec": {"nodeSelector": {"none": "true"}}}}
        else:
            path = f"{APPS}/deployments/carrel-{component}"
            before, none = {"replicas": self.get(path)["spec"]["replicas"]}, {"replicas": 0}
        self.api.call("PATCH", path, {"spec": none})
        eventually(lambda: component not in {each["metadata"]["labels"][COMPONENT] for each in self.pods()}, STARTING_S)
        try:
            yield
        finally:
            self.api.call("PATCH", path, {"spec": before})

    def get(self, path: str) -> Any:
        return self.api.call("GET", path)

    def pod(self, name: str, namespace: str = "default") -> Json:
        found: Json = self.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found


@contextmanager
def chart_node(*, has_image: bool = True) -> Iterator[InstalledChart]:
    """A real node that has the images, perhaps without Carrel's, and no Carrel yet."""
    with shown_run("chart") as run, cluster_with_node(run) as node:
        node.api.wait_for_namespace("default")
        yield InstalledChart(node, has_image=has_image)
