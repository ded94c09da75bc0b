"""The real kube-scheduler looks at a part of 300 nodes for each pod: a gang is bound all the same."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.carrel_cluster import CarrelCluster, a_node, carrel_cluster
from tests.e2e.pods import create, eventually, namespace, pod

NODES, MEMBERS, GPUS = 300, 8, 2
FREE = tuple(f"node-{number:03}" for number in range(5, NODES, 37))
"""These have twice as many GPUs as the others. One question has only some of them."""
LIMIT_S = 180


@pytest.fixture(scope="module")
def cluster_of_carrel() -> Iterator[CarrelCluster]:
    names = [f"node-{number:03}" for number in range(NODES)]
    nodes = [a_node(name, [40960] * (2 * GPUS if name in FREE else GPUS)) for name in names]
    with carrel_cluster("gangs-in-large-clusters", nodes) as cluster:
        yield cluster


def a_member(number: int, gpus: int, size: int, **spec: Any) -> dict[str, Any]:
    """It asks for GPUs in words that kube-scheduler does not count: so it asks about nodes without room too."""
    manifest = pod(f"member-{number}", schedulerName="gpu-scheduler", **spec)
    gang = {"pod-group-name": "job", "carrel.dev/gang-size": str(size)}
    manifest["metadata"]["annotations"] = {"carrel.dev/gpu-count": str(gpus), **gang}
    manifest["metadata"]["labels"] = {"job": "gang"}
    return manifest


def bound(cluster: CarrelCluster, namespace: str) -> Mapping[str, str]:
    """Member → its node."""
    pods = cluster.pods(namespace)
    return {name: each["spec"]["nodeName"] for name, each in pods.items() if each["spec"].get("nodeName")}


def test_a_gang_of_eight_is_bound(cluster_of_carrel: CarrelCluster) -> None:
    with namespace(cluster_of_carrel.api) as name:
        for number in range(MEMBERS):
            create(cluster_of_carrel.api, name, a_member(number, GPUS, MEMBERS))

        eventually(lambda: len(bound(cluster_of_carrel, name)) == MEMBERS, LIMIT_S)


def test_a_gang_that_has_room_only_on_nodes_far_from_each_other_is_bound(cluster_of_carrel: CarrelCluster) -> None:
    with namespace(cluster_of_carrel.api) as name:
        for number in range(len(FREE)):
            create(cluster_of_carrel.api, name, a_member(number, 2 * GPUS, len(FREE)))

        eventually(lambda: len(bound(cluster_of_carrel, name)) == len(FREE), LIMIT_S)

        assert sorted(bound(cluster_of_carrel, name).values()) == sorted(FREE)


def test_a_member_that_may_not_run_where_it_was_planned_is_planned_elsewhere(cluster_of_carrel: CarrelCluster) -> None:
    """Carrel does not read required anti-affinity: both fit on one node, and kube-scheduler never binds them there."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"job": "gang"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    with namespace(cluster_of_carrel.api) as name:
        for number in range(2):
            create(cluster_of_carrel.api, name, a_member(number, 1, 2, affinity=apart))

        eventually(lambda: len(bound(cluster_of_carrel, name)) == 2, LIMIT_S)

        assert len(set(bound(cluster_of_carrel, name).values())) == 2
