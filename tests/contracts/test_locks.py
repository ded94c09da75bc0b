"""What Carrel's ledger stands on: of many who write the same Lease at once, exactly one wins."""

import asyncio

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import AlreadyExists, Conflict, DeleteOptions, Json, MergePatch, NotFound
from carrel.kubernetes.objects.resources import LEASES
from tests.contracts.objects import lease

MANY = 24


async def test_of_many_creates_one_wins(cluster: Client, namespace: str) -> None:
    outcomes = await asyncio.gather(
        *(cluster.create(LEASES, lease("gpu-n1-0", f"pod-{index}"), namespace) for index in range(MANY)),
        return_exceptions=True,
    )
    [winner] = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert sum(isinstance(outcome, AlreadyExists) for outcome in outcomes) == MANY - 1
    assert await cluster.get(LEASES, "gpu-n1-0", namespace) == winner


async def test_of_many_updates_of_one_version_one_wins(cluster: Client, namespace: str) -> None:
    made = await cluster.create(LEASES, lease("gpu-n1-0"), namespace)
    outcomes = await asyncio.gather(
        *(cluster.update(LEASES, {**made, "spec": {"holderIdentity": f"pod-{index}"}}) for index in range(MANY)),
        return_exceptions=True,
    )
    [winner] = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == MANY - 1
    assert await cluster.get(LEASES, "gpu-n1-0", namespace) == winner


async def test_of_an_update_and_a_deletion_of_one_version_one_wins(cluster: Client, namespace: str) -> None:
    for round_ in range(8):
        name = f"gpu-n1-{round_}"
        made = await cluster.create(LEASES, lease(name), namespace)
        metadata = made["metadata"]
        how = DeleteOptions(uid=metadata["uid"], resource_version=metadata["resourceVersion"])
        taken, freed = await asyncio.gather(
            cluster.update(LEASES, {**made, "spec": {"holderIdentity": "pod-1"}}),
            cluster.delete(LEASES, name, namespace, how=how),
            return_exceptions=True,
        )
        assert isinstance(taken, dict) != isinstance(freed, dict)
        if isinstance(taken, dict):
            assert (await cluster.get(LEASES, name, namespace))["spec"] == {"holderIdentity": "pod-1"}
        else:
            with pytest.raises(NotFound):
                await cluster.get(LEASES, name, namespace)


async def test_counting_with_conflicts_and_another_try_loses_nothing(cluster: Client, namespace: str) -> None:
    await cluster.create(LEASES, lease("counter", annotations={"count": "0"}), namespace)

    async def count() -> None:
        while True:
            seen: Json = await cluster.get(LEASES, "counter", namespace)
            seen["metadata"]["annotations"]["count"] = str(int(seen["metadata"]["annotations"]["count"]) + 1)
            try:
                await cluster.update(LEASES, seen)
            except Conflict:
                continue
            return

    await asyncio.gather(*(count() for _ in range(12)))
    assert (await cluster.get(LEASES, "counter", namespace))["metadata"]["annotations"] == {"count": "12"}


async def test_patches_without_a_precondition_are_all_kept(cluster: Client, namespace: str) -> None:
    await cluster.create(LEASES, lease("gpu-n1-0"), namespace)
    patches = [MergePatch({"metadata": {"annotations": {f"pod-{index}": "8138"}}}) for index in range(MANY)]
    await asyncio.gather(*(cluster.patch(LEASES, "gpu-n1-0", patch, namespace) for patch in patches))
    kept = (await cluster.get(LEASES, "gpu-n1-0", namespace))["metadata"]["annotations"]
    assert kept == {f"pod-{index}": "8138" for index in range(MANY)}
