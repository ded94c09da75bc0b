"""The extender is killed while the real kube-scheduler works with it. It is slow, so it has a file of its own."""

from collections.abc import Iterator
from random import Random

import pytest

from tests.e2e.carrel_cluster import CarrelCluster, carrel_cluster
from tests.e2e.pods import create, eventually, namespace
from tests.e2e.test_scheduling import MIXED, a_claim, all_run, check_leases, mixed_pods


@pytest.fixture(scope="module")
def cluster_of_carrel() -> Iterator[CarrelCluster]:
    with carrel_cluster("killed", MIXED) as cluster:
        yield cluster


def test_a_killed_extender_loses_and_doubles_nothing(cluster_of_carrel: CarrelCluster) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        a_claim(cluster, ours, "pair", devices={"count": 2}, topology={"mode": "Required"})
        for manifest in mixed_pods(60, Random(2)):
            create(cluster.api, ours, manifest)
        for already in (5, 20, 40):
            eventually(lambda already=already: bound(cluster, ours) >= already, limit_s=180)  # type: ignore[misc] # now
            cluster.extender.program.kill()
            cluster.extender.program.wait()
            cluster.extender = cluster.start_extender()

        eventually(lambda: all_run(cluster, ours, 60), limit_s=240)
        eventually(lambda: leases_are_right(cluster, ours), limit_s=180)


def bound(cluster: CarrelCluster, namespace: str) -> int:
    return sum(bool(each["spec"].get("nodeName")) for each in cluster.pods(namespace).values())


def leases_are_right(cluster: CarrelCluster, namespace: str) -> bool:
    """Leftovers of a killed bind on a Lease are freed after a while."""
    try:
        check_leases(cluster, namespace)
    except AssertionError:
        return False
    return True
