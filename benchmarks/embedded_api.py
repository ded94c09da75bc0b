"""The embedded Kubernetes API with ten thousand objects; at least 2,000 creates a second."""

import asyncio
import time
from collections.abc import Iterator

from benchmarks.measuring import Figure
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import BindTarget, Selection
from carrel.kubernetes.objects.resources import NODES, PODS
from kubernetes_in_memory import EmbeddedApi

PODS_MADE = 10_000


def _pod(number: int) -> dict[str, object]:
    limits = {"limits": {"aliyun.com/gpu-mem": "8138"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "labels": {"app": f"app-{number % 10}"}},
        "spec": {"containers": [{"name": "main", "image": "work", "resources": limits}]},
    }


async def _measure() -> list[Figure]:
    client = Client(EmbeddedApi())
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})

    start = time.process_time()
    made = [await client.create(PODS, _pod(number), "default") for number in range(PODS_MADE)]
    created = time.process_time() - start

    start = time.process_time()
    for pod in made[:2_000]:
        await client.bind(BindTarget("default", pod["metadata"]["name"], pod["metadata"]["uid"], "n1"))
    bound = time.process_time() - start

    start = time.process_time()
    await client.list(PODS)
    listed = time.process_time() - start

    start = time.process_time()
    await client.list(PODS, Selection("default", labels="app=app-3", fields="spec.nodeName=n1"))
    selected = time.process_time() - start
    return [
        Figure("create a pod (2,000 a second)", created / PODS_MADE * 1e6, "µs", 500.0),
        Figure("bind a pod", bound / 2_000 * 1e6, "µs"),
        Figure("list 10,000 pods, decoded", listed * 1e3, "ms"),
        Figure("list by label and node out of 10,000", selected * 1e3, "ms"),
    ]


def measure() -> Iterator[Figure]:
    yield from asyncio.run(_measure())
