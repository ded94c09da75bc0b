"""The embedded API as a process, with hollow GPU nodes, Carrel's extender and controller, and a real kube-scheduler.

There is no etcd and no kube-apiserver here. Everything ends with the `with` block; the logs stay.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from carrel.cluster.configuration_record import GIVEN, TEXT, body_of
from carrel.ledger.gpus import Node
from carrel.manifests import crds
from carrel.scheduling.scheduler_config import Extender, scheduler_config
from testbed.build import component
from testbed.clients import kubectl
from testbed.fixtures import shown_run
from testbed.hollow import hollow_command
from testbed.processes import Failed, Process
from testbed.runs import Run
from tests.e2e.configuration import OURS, text_of

Json = dict[str, Any]

API, EXTENDER, SCHEDULER = range(3)
"""Which port of the slot belongs to whom."""


class EmbeddedCluster:
    def __init__(self, run: Run, nodes: Sequence[Node], until: ExitStack) -> None:
        self._run = run
        self._until = until
        self.kubeconfig = run.data / "embedded.kubeconfig"
        self._start_api()
        self._start_hollow_nodes(nodes)
        for name in ("extender", "controller"):
            port = str(run.slot.ports[EXTENDER]) if name == "extender" else "0"
            process = self._start(name, *_carrel(name), "--kubeconfig", self.kubeconfig, "--port", port)
            if name == "extender":
                process.wait_until("ready", self._is_extender_ready)
        self.scheduler = self._start_scheduler()

    def kubectl(self, *arguments: str, given: Json | None = None) -> str:
        """What kubectl prints. Raises `Failed` with its complaint."""
        command = [str(kubectl()), "--kubeconfig", str(self.kubeconfig), *arguments]
        body = json.dumps(given) if given else None
        outcome = subprocess.run(command, input=body, capture_output=True, text=True, check=False)
        if outcome.returncode != 0:
            raise Failed(f"kubectl {' '.join(arguments)}: {outcome.stderr.strip()}")
        return outcome.stdout

    def get(self, *arguments: str) -> Json:
        found: Json = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def _start(self, name: str, *command: str | Path) -> Process:
        process = Process.start(name, command, self._run.log(name))
        self._until.callback(process.stop)
        return process

    def _start_api(self) -> None:
        manifests = self._run.data / "start.yaml"
        ours = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}}
        manifests.write_text(yaml.safe_dump_all([*crds(), ours, body_of(GIVEN, OURS, {TEXT: text_of()})]))
        port = str(self._run.slot.ports[API])
        options = ("--tls", "--port", port, "--load", manifests, "--kubeconfig", self.kubeconfig)
        # It is written when the socket is open.
        self._start("embedded-api", *_carrel("api"), *options).wait_until("serving", self._has_kubeconfig)

    def _has_kubeconfig(self) -> bool:
        return self.kubeconfig.exists() and bool(self.kubeconfig.read_text().strip())

    def _start_hollow_nodes(self, nodes: Sequence[Node]) -> None:
        command = hollow_command(self._run.data / "hollow.json", self.kubeconfig, nodes)
        self._start("hollow", *command).wait_until(
            "ready", lambda: len(self.get("gpunodestatuses")["items"]) == len(nodes)
        )

    def _start_scheduler(self) -> Process:
        """With its own Lease, which it holds on the embedded API."""
        url = f"http://127.0.0.1:{self._run.slot.ports[EXTENDER]}"
        configuration, labels = self._run.data / "scheduler.yaml", self._run.data / "labels.yaml"
        # As `carrel scheduler-config` tells it.
        config = scheduler_config(Extender(url), str(self.kubeconfig))
        configuration.write_text(yaml.safe_dump(config))
        # Without this file, or with an empty one, kube-scheduler logs an error, whatever the server.
        labels.write_text("no_such_metric,label: value\n")
        return self._start(
            "kube-scheduler",
            component("kube-scheduler"),
            f"--config={configuration}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._run.slot.ports[SCHEDULER]}",
            f"--allow-metric-labels-manifest={labels}",
        )

    def _is_extender_ready(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._run.slot.ports[EXTENDER]}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)


def _carrel(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "carrel", name)


@contextmanager
def embedded_cluster(nodes: Sequence[Node]) -> Iterator[EmbeddedCluster]:
    with shown_run("embedded-api") as run, ExitStack() as until:
        yield EmbeddedCluster(run, nodes, until)
