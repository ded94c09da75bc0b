"""One real node: containerd, kubelet and kube-proxy, with real containers, in a namespace of its own.

Pods get addresses that this machine can reach, and Services answer from the machine too, so that kube-apiserver
calls webhooks through their Services as in production. There is no cluster DNS.
"""

import json
import socket
import subprocess
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from testbed import programs
from testbed.build import CNI_PLUGINS, built, component
from testbed.control_plane import ApiServer, Shape, api_server
from testbed.images import PAUSE, Loadable, busybox_images
from testbed.namespace import Namespace, namespace
from testbed.processes import Failed, Process
from testbed.runs import Run

NAME = "real-node"
KUBELET_PORT = 10250
CONTAINERD = "/run/containerd/containerd.sock"


class Node:
    """A real node that has joined the cluster of its API server. Made by `cluster_with_node`."""

    def __init__(self, api: ApiServer, inner: Namespace) -> None:
        self.name = NAME
        self.api = api
        self.namespace = inner
        self._programs = programs.fetch()
        self._start_containerd()
        for image in busybox_images(self._programs / "bin/busybox"):
            self.load(image)
        self._kubelet = self._start_kubelet()
        self._start_proxy()

    def restart_kubelet(self) -> None:
        """Its containers keep running meanwhile."""
        self._kubelet.stop()
        self._kubelet = self._start_kubelet()
        # That it is Ready is what its predecessor said.
        self._kubelet.wait_until("serving", self._is_serving)

    def load(self, image: Loadable) -> None:
        """Then pods can use the image, with `imagePullPolicy: Never`."""
        file = self.api.run.data / "image.tar"
        image.write(file)
        command = self.namespace.inside(
            "ctr", f"--address={CONTAINERD}", "--namespace=k8s.io", "images", "import", file
        )
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        file.unlink()
        if outcome.returncode != 0:
            raise Failed(f"containerd did not take the image {image.name}: {outcome.stderr.strip()}")

    def _start_containerd(self) -> None:
        criplugin = {
            "sandbox_image": f"docker.io/{PAUSE}",
            # Without CAP_SYS_RESOURCE, which some machines lack, no container may lower its score.
            "restrict_oom_score_adj": True,
            "cni": {"bin_dir": str(built(CNI_PLUGINS)), "conf_dir": "/etc/cni/net.d"},
        }
        network = {
            "cniVersion": "0.4.0",
            "name": "testbed",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": str(self.api.slot.pods)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        self._write("/etc/cni/net.d/testbed.conflist", json.dumps(network))
        self._write(
            "/etc/containerd/config.toml", _toml({"version": 2}, {'plugins."io.containerd.grpc.v1.cri"': criplugin})
        )
        process = self._start("containerd", "containerd", "--config=/etc/containerd/config.toml")
        version = self.namespace.inside("ctr", f"--address={CONTAINERD}", "version")
        process.wait_until("serving", lambda: subprocess.run(version, capture_output=True, check=False).returncode == 0)

    def _start_kubelet(self) -> Process:
        user = f"system:node:{self.name}"
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.api.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.namespace.cgroup,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            # Many machines still mount version 1 of the control groups, which a kubelet refuses unless told otherwise.
            "failCgroupV1": False,
            # It looks again after this time, also when it was not ready at first: Ready in 2 s instead of 11.
            "nodeStatusUpdateFrequency": "1s",
            # The machine's disk may be fuller than a kubelet likes; that is not what is tested.
            "evictionHard": {"memory.available": "100Mi"},
        }
        self._write("/etc/kubelet.yaml", yaml.safe_dump(configuration))
        process = self._start(
            "kubelet",
            component("kubelet"),
            "--config=/etc/kubelet.yaml",
            f"--kubeconfig={self.api.kubeconfig_of(user, ['system:nodes'])}",
            f"--container-runtime-endpoint=unix://{CONTAINERD}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.api.slot.node_address}",
            "--runtime-cgroups=/",
        )
        process.wait_until("Ready", self._is_ready)
        return process

    def _start_proxy(self) -> None:
        process = self._start(
            "kube-proxy",
            component("kube-proxy"),
            f"--kubeconfig={self.api.kubeconfig_of('system:kube-proxy')}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={self.api.slot.pods}",
            f"--hostname-override={self.name}",
            # A pod that calls itself through a Service on the same bridge gets its answer by the way it asked.
            "--masquerade-all=true",
            # Limits of the whole machine's connection tracking, which a namespace may not change.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )
        rules = self.namespace.inside("iptables-save", "--table=nat")
        process.wait_until("proxying", lambda: b"KUBE-SERVICES" in subprocess.check_output(rules))

    def _is_serving(self) -> bool:
        with socket.create_connection((str(self.api.slot.node_address), KUBELET_PORT), timeout=5):
            return True

    def _is_ready(self) -> bool:
        try:
            status = self.api.call("GET", f"/api/v1/nodes/{self.name}")["status"]
        except urllib.error.HTTPError:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))

    def _start(self, name: str, *command: str | Path) -> Process:
        return self.api.start(name, self.namespace.inside(*command))

    def _write(self, path: str, text: str) -> None:
        file = self.namespace.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@contextmanager
def cluster_with_node(run: Run) -> Iterator[Node]:
    """A whole small cluster: control plane, one real node, kube-proxy."""
    # The API server listens on the machine's end of the node's cable: the node reaches it, the rest of the world not.
    shape = Shape(address=run.slot.machine_address, service_accounts=True)
    with namespace(run) as inner, api_server(run, shape) as api:
        api.start_controllers()
        api.start_scheduler()
        yield Node(api, inner)


def _toml(top: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The little of TOML that containerd's configuration needs: JSON's scalars are TOML's."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
    for name, table in tables.items():
        nested = {key: value for key, value in table.items() if isinstance(value, dict)}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(v)}" for key, v in table.items() if key not in nested)]
        for key, value in nested.items():
            lines += [f"[{name}.{key}]", *(f"{inner} = {json.dumps(v)}" for inner, v in value.items())]
    return "\n".join(lines) + "\n"
