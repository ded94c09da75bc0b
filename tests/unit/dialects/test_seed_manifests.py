"""The manifests of the four systems' own documents run unchanged."""

from fractions import Fraction
from typing import Any

import yaml

from carrel.dialects import gpuclaim, gpushare, kai, kai_reservation, maia, registry
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai_reservation import BEFORE_KAI_0_17, ReservationRequest
from carrel.ids import NodeName
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import WHOLE, Gang, GpuPolicy, Memory, Portion, Request
from tests.kit.objects import claim, gpu_node_status, pod_from

GPUSHARE = """
apiVersion: v1
kind: Pod
metadata:
  name: binpack-1
spec:
  containers:
    - name: binpack-1
      image: cuda
      resources:
        limits:
          aliyun.com/gpu-mem: 8138
"""

CLAIM_AND_POD = """
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: my-gpu-request
spec:
  devices:
    count: 2
    policy: contiguous
---
apiVersion: v1
kind: Pod
metadata:
  name: my-workload
  annotations:
    gpu.scheduling/claim: my-gpu-request
spec:
  schedulerName: gpu-scheduler
  containers:
    - name: training
      image: nvidia/cuda:12.4.1-runtime-ubuntu22.04
"""

GPU_NODE_STATUS = """
metadata:
  name: node-a
status:
  devices:
    - id: 0
      island: "nvlink-group-0"
      bandwidthGBps: 600
    - id: 1
      island: "nvlink-group-0"
      bandwidthGBps: 600
    - id: 2
      island: "nvlink-group-1"
      bandwidthGBps: 64
"""

FRACTION = """
apiVersion: v1
kind: Pod
metadata:
  name: gpu-sharing
  labels:
    kai.scheduler/queue: default-queue
  annotations:
    gpu-fraction: "0.5"
spec:
  schedulerName: kai-scheduler
  containers:
    - name: ubuntu
      image: ubuntu
"""

RESERVATION = """
apiVersion: v1
kind: Pod
metadata:
  namespace: runai-reservation
  labels:
    app: runai-reservation
    runai-gpu-group: gpu-group-xyz
    app.runai.resource.reservation: runai-reservation-gpu
  annotations:
    karpenter.sh/do-not-disrupt: "true"
spec:
  nodeName: node-1
  serviceAccountName: runai-reservation
  containers:
  - name: runai-reservation
    image: the-reservation-image
    imagePullPolicy: IfNotPresent
    resources:
      limits:
        nvidia.com/gpu: 1
    env:
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    - name: POD_NAMESPACE
      valueFrom:
        fieldRef:
          fieldPath: metadata.namespace
"""


def no_claims(namespace: str, name: str) -> None:
    return None


def test_seed_001_a_pod_that_asks_for_gpu_mem_8138() -> None:
    ask = registry.request_of(pod_from(yaml.safe_load(GPUSHARE)), no_claims)
    assert ask == PodRequest(gpushare.DIALECT, Request(1, Memory(MiB(8138))))


def test_seed_002_a_pod_with_its_claim() -> None:
    theirs, manifest = yaml.safe_load_all(CLAIM_AND_POD)
    named = claim(theirs["spec"], theirs["metadata"]["name"], "default")
    ask = registry.request_of(pod_from(manifest), lambda namespace, name: named if name == "my-gpu-request" else None)
    assert ask == PodRequest(gpuclaim.DIALECT, Request(2, WHOLE, policy=GpuPolicy.CONTIGUOUS), "my-gpu-request")


def test_seed_002_a_gang_of_four_gpus_each() -> None:
    spec: dict[str, Any] = {"devices": {"count": 4}, "gangRef": "my-distributed-training-job"}
    _, manifest = yaml.safe_load_all(CLAIM_AND_POD)
    gang = Gang("default/my-distributed-training-job", 2)
    ask = registry.request_of(pod_from(manifest), lambda namespace, name: claim(spec), lambda pod, name: gang)
    assert isinstance(ask, PodRequest)
    assert ask.request == Request(4, WHOLE, gang=gang)


def test_seed_002_the_islands_of_a_node() -> None:
    node = gpuclaim.node_of(gpu_node_status(yaml.safe_load(GPU_NODE_STATUS)), {})
    assert node.name == "node-a"
    assert [(gpu.index, gpu.island, gpu.bandwidth_gbps) for gpu in node.gpus] == [
        (0, "nvlink-group-0", 600),
        (1, "nvlink-group-0", 600),
        (2, "nvlink-group-1", 64),
    ]


def test_seed_003_a_pod_that_asks_for_half_a_gpu() -> None:
    ask = registry.request_of(pod_from(yaml.safe_load(FRACTION)), no_claims)
    assert ask == PodRequest(kai.DIALECT, Request(1, Portion(Fraction(1, 2))))


def test_seed_003_the_reservation_pod() -> None:
    written = kai_reservation.reservation_pod(
        ReservationRequest(NodeName("node-1"), "gpu-group-xyz", "the-reservation-image"), BEFORE_KAI_0_17
    )
    expected = yaml.safe_load(RESERVATION)
    # `runai-reservation-gpu-node-1-abc45`: five letters or digits at the end, here always the same ones.
    name = written["metadata"].pop("name")
    assert name.startswith("runai-reservation-gpu-node-1-")
    assert len(name) == len("runai-reservation-gpu-node-1-abc45")
    # Kubernetes fills the request in from the limit. What Carrel adds keeps the pod where it is.
    container = expected["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    assert written["spec"]["containers"][0].pop("command") == ["carrel", "reservation"]
    added = {"tolerations", "priorityClassName", "terminationGracePeriodSeconds", "enableServiceLinks"}
    assert written["spec"].keys() - expected["spec"].keys() == added
    assert {**written, "spec": {k: v for k, v in written["spec"].items() if k not in added}} == expected


def test_seed_000_the_answer_of_the_booking_system() -> None:
    verdict = maia.read_verdict({"schedulable": True, "until": "2025-06-15T00:00:00+00:00", "gpu": "NVIDIA-RTX-A6000"})
    assert (verdict.schedulable, verdict.model) == (True, "NVIDIA-RTX-A6000")
