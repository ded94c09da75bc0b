"""Objects as the API server returns them, made from manifests as people write them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from carrel.dialects.gpuclaim_objects import GpuClaim, GpuNodeStatus
from carrel.kubernetes.objects.kinds import ConfigMap, Lease, Pod


def pod_from(manifest: Mapping[str, Any]) -> Pod:
    """Like the API server, it writes quantities as text."""
    copy = deepcopy(dict(manifest))
    for group in ("containers", "initContainers"):
        for container in copy.get("spec", {}).get(group, []):
            for amounts in container.get("resources", {}).values():
                amounts.update({resource: str(amount) for resource, amount in amounts.items()})
    copy["metadata"].setdefault("namespace", "default")
    return msgspec.convert(copy, Pod)


def pod(
    annotations: Mapping[str, str] | None = None,
    limits: Sequence[Mapping[str, str]] = ({},),
    init: Sequence[Mapping[str, Any]] = (),
    labels: Mapping[str, str] | None = None,
    node_selector: Mapping[str, str] | None = None,
) -> Pod:
    """The pod `lab/train`, with one container `c0`, `c1`, … for each of the limits."""
    containers = [{"name": f"c{i}", "resources": {"limits": dict(each)}} for i, each in enumerate(limits)]
    return pod_from(
        {
            "metadata": {
                "name": "train",
                "namespace": "lab",
                "uid": "pod-uid-1",
                "annotations": dict(annotations or {}),
                "labels": dict(labels or {}),
            },
            "spec": {
                "containers": containers,
                "initContainers": [dict(each) for each in init],
                "nodeSelector": dict(node_selector or {}),
            },
        }
    )


def init_container(name: str, limits: Mapping[str, str], restart_policy: str = "") -> dict[str, Any]:
    return {"name": name, "restartPolicy": restart_policy, "resources": {"limits": dict(limits)}}


def claim(spec: Mapping[str, Any], name: str = "my-gpu-request", namespace: str = "lab") -> GpuClaim:
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, GpuClaim)


def lease(manifest: Mapping[str, Any]) -> Lease:
    return msgspec.convert(manifest, Lease)


def gpu_node_status(manifest: Mapping[str, Any]) -> GpuNodeStatus:
    return msgspec.convert(manifest, GpuNodeStatus)


def config_map(name: str, data: Mapping[str, str], namespace: str = "kube-system") -> ConfigMap:
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "data": dict(data)}, ConfigMap)
