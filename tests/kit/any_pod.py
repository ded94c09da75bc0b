"""Random pods that an API server accepts: all dialects, and unusual places for a GPU or a variable."""

from random import Random
from typing import Any

from tests.kit.forged import PROTECTED, PROTECTED_LABELS

Json = dict[str, Any]

VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "PATH", "MINE")
ASKED = (
    {"gpu-fraction": "0.5"},
    {"gpu-memory": "4096", "gpu-fraction-num-devices": "2"},
    {"gpu.scheduling/claim": "c"},
    {"carrel.dev/gpu-count": "2"},
    {"carrel.dev/gpu-memory-mib": "8138", "carrel.dev/gpu-model": "NVIDIA-RTX-A6000"},
    {"gpu-fraction": "2"},
    {"carrel.dev/gpu-count": "1", "carrel.dev/booking": "next"},
    {"gpu-fraction": "0.5", "carrel.dev/booking": "b2"},
    {"carrel.dev/booking": "b1"},
    {"carrel.dev/gpu-count": "1", "hub.jupyter.org/username": "ada", "carrel.dev/hub-address": "ada@lab.example"},
)
FORGED = tuple({key: value} for key, value in PROTECTED.items())
LABELS = (
    {"app": "x"},
    {"hub.jupyter.org/username": "b-40c"},
    {"runai-gpu-group/g": "g"},
    *({key: value} for key, value in PROTECTED_LABELS.items()),
)
TODAY: tuple[Json, ...] = (
    {"schedulingGates": [{"name": "example.com/quota"}]},
    {"schedulingGates": [{"name": "carrel.dev/booking"}, {"name": "example.com/quota"}]},
    {"resources": {"requests": {"cpu": "9999"}}},
    {"volumes": [{"name": "model", "image": {"reference": "registry.example/model:1"}}]},
    {"runtimeClassName": "nvidia"},
)


def any_pod(random: Random) -> Json:
    metadata: Json = {"generateName": "any-"}
    annotations: dict[str, str] = {}
    for words, chance in ((ASKED, 0.3), (FORGED, 0.3), (({"mine": "a/b~c"},), 0.3)):
        if random.random() < chance:
            annotations |= random.choice(words)
    if annotations or random.random() < 0.3:
        metadata["annotations"] = annotations
    if random.random() < 0.3:
        metadata["labels"] = dict(random.choice(LABELS))
    if random.random() < 0.3:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": random.choice(("job-1", "job-2"))}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    spec: Json = {"containers": [_container(random, f"c{i}") for i in range(random.randint(1, 3))]}
    if random.random() < 0.4:
        spec["initContainers"] = [_init_container(random, f"i{i}") for i in range(random.randint(0, 2))]
    for said in TODAY:
        if random.random() < 0.1:
            spec |= said
    if random.random() < 0.2:
        spec["schedulerName"] = random.choice(("gpu-scheduler", "kai-scheduler", "mine"))
    if random.random() < 0.1:
        spec["priorityClassName"] = random.choice(("carrel-gpu", "system-node-critical"))
    if random.random() < 0.1:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": random.choice(("NVIDIA-RTX-A6000", "other"))}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _init_container(random: Random, name: str) -> Json:
    """One in three is a sidecar."""
    return {**_container(random, name), **({"restartPolicy": "Always"} if random.random() < 0.3 else {})}


def _container(random: Random, name: str) -> Json:
    container: Json = {"name": name, "image": "work"}
    if random.random() < 0.6:
        container["resources"] = _resources(random)
    if random.random() < 0.6:
        container["env"] = [_variable(random) for _ in range(random.randint(0, 4))]
    if random.random() < 0.2:
        container["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    return container


def _resources(random: Random) -> Json:
    resource = random.choice(("nvidia.com/gpu", "nvidia.com/gpu", "aliyun.com/gpu-mem", "cpu"))
    amount = random.choice(("1", "2", "0", "1e3"))
    limits = {resource: amount, **({"memory": "1Gi"} if random.random() < 0.3 else {})}
    if random.random() < 0.1:
        return {}
    return {"limits": limits, **({"requests": {resource: amount}} if random.random() < 0.4 else {})}


def _variable(random: Random) -> Json:
    name = random.choice(VARIABLES)
    if random.random() < 0.3:
        return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}
    return {"name": name, "value": random.choice(("all", "none", "void", "$(MINE)", ""))}
