"""What pods of other dialects hold is shown to schedulers as allocated claims, and as nothing else."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from carrel.cluster.pod_progress import holder_of
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch, Selection
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.kubernetes.reflector import Reflector
from carrel.ledger.gpus import Node
from carrel.lifecycle.freeing.left_shadows import LeftShadows
from carrel.resource_claims.objects import RESOURCE_CLAIMS, RESOURCE_SLICES
from carrel.resource_claims.shadows.shadow_claims import ShadowClaims
from tests.kit.agent import becomes
from tests.kit.dra import Gate, allocated, deallocate, new_claim, publish
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import OURS, Lab, Replica, a_lab

N1 = a_node("n1", gpus=2)
SHARE = {"aliyun.com/gpu-mem": "4000"}
OURS_ONLY = Selection(OURS, labels="carrel.dev/shadow=true")


class Shadows:
    """The leader's part, without its loops."""

    def __init__(self, lab: Lab, replica: Replica) -> None:
        assert replica.device_claims is not None
        self.lab, self.replica = lab, replica
        self.claims = ShadowClaims(replica, replica.device_claims)

    async def round(self) -> int:
        """Until nothing is left to write; how many writes that took."""
        writes = 0
        for _ in range(5):
            await self.seen()
            new = sum([await self.claims.reconcile(node) for node in sorted(self.claims.nodes())])
            writes += new
            if not new:
                return writes
        raise AssertionError("there is always something more to write")

    async def seen(self) -> None:
        """Once the caches are as the API server is."""
        claims = self.replica.device_claims
        assert claims is not None
        await _same(claims.claims, (await self.lab.client.list(RESOURCE_CLAIMS)).items)
        await _same(claims.slices, (await self.lab.client.list(RESOURCE_SLICES)).items)
        await _same(self.replica.leases, (await self.lab.client.list(LEASES, Selection(OURS))).items)

    async def shown(self) -> dict[str, list[str]]:
        """Device → the amounts that are shown as held."""
        found: dict[str, list[str]] = {}
        for claim in (await self.lab.client.list(RESOURCE_CLAIMS, OURS_ONLY)).items:
            assert claim.status.allocation is not None
            (result,) = claim.status.allocation.devices.results
            amount = result.consumed_capacity.get("memory", "whole")
            found.setdefault(f"{result.pool}/{result.device}", []).append(amount)
        return {device: sorted(amounts) for device, amounts in found.items()}


async def _same(cache: Reflector[Any], there: Sequence[Object]) -> None:
    def versions(objects: Iterable[Object]) -> dict[str, str]:
        return {each.metadata.uid: each.metadata.resource_version for each in objects}

    await eventually(lambda: versions(cache.store) == versions(there))


@asynccontextmanager
async def a_shadow_lab(*nodes: Node) -> AsyncIterator[Shadows]:
    async with a_lab(nodes or [N1]) as lab:
        await publish(lab, *(nodes or [N1]))
        async with lab.replica(dra=True) as replica:
            yield Shadows(lab, replica)


async def share(shadows: Shadows, name: str, limits: Mapping[str, str] = SHARE) -> Json:
    pod = await shadows.lab.pod(name, limits=limits)
    assert await shadows.replica.bind(pod, "n1") is None
    return pod


async def test_what_a_pod_holds_is_an_allocated_claim_in_carrels_namespace() -> None:
    async with a_shadow_lab() as shadows:
        await share(shadows, "train")
        assert await shadows.round() == 2, "it is created, and allocated"

        assert await shadows.shown() == {"n1/gpu-0": ["4000Mi"]}
        (claim,) = (await shadows.lab.client.list(RESOURCE_CLAIMS, OURS_ONLY)).items
        assert claim.metadata.annotations["carrel.dev/holder"] == "lab/train"
        assert claim.status.allocation is not None
        assert claim.status.allocation.allocation_timestamp == "2026-11-16T12:00:00Z"
        (lease,) = (await shadows.lab.client.list(LEASES, Selection(OURS))).items
        (reserved,) = claim.status.reserved_for
        assert (reserved.resource, reserved.name, reserved.uid) == ("leases", "gpu-n1-0", lease.metadata.uid)


async def test_nothing_is_written_as_long_as_nothing_changes() -> None:
    async with a_shadow_lab() as shadows:
        await share(shadows, "train")
        await shadows.round()
        assert await shadows.round() == 0


async def test_a_whole_gpu_is_shown_as_full_and_shares_one_by_one() -> None:
    async with a_shadow_lab() as shadows:
        for name in ("one", "two"):
            await share(shadows, name)
        await share(shadows, "whole", {"nvidia.com/gpu": "1"})
        await shadows.round()
        assert await shadows.shown() == {"n1/gpu-0": ["4000Mi", "4000Mi"], "n1/gpu-1": ["16276Mi"]}


async def test_a_claim_holds_its_part_itself() -> None:
    async with a_shadow_lab() as shadows:
        claim = await new_claim(shadows.lab, "train")
        assert await Gate(shadows.replica).allocate(shadows.lab, claim, {"n1/gpu-0": "8138Mi"}) is None
        await shadows.round()
        assert await shadows.shown() == {}


async def test_the_shadow_goes_with_the_share() -> None:
    async with a_shadow_lab() as shadows:
        pod = await share(shadows, "train")
        await share(shadows, "stays")
        await shadows.round()
        await shadows.lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: shadows.replica.pods.store.by_uid(pod["metadata"]["uid"]) is None)
        await shadows.replica.collector.collect()

        assert await shadows.round() == 2, "deallocated, which wakes schedulers, and deleted"

        assert await shadows.shown() == {"n1/gpu-0": ["4000Mi"]}


async def test_a_node_without_a_slice_has_no_shadows() -> None:
    async with a_shadow_lab() as shadows:
        await share(shadows, "train")
        await shadows.round()
        await shadows.lab.client.delete(RESOURCE_SLICES, "n1-gpu.carrel.dev")
        await shadows.round()
        assert await shadows.shown() == {}


async def test_where_devices_cannot_be_divided_one_shadow_shows_the_gpu_as_taken() -> None:
    async with a_shadow_lab() as shadows:
        devices = [{"name": "gpu-0", "attributes": {"uuid": {"string": N1.gpus[0].uuid}}}]
        spec = MergePatch({"spec": {"devices": devices}})
        await shadows.lab.client.patch(RESOURCE_SLICES, "n1-gpu.carrel.dev", spec)
        for name in ("one", "two"):
            await share(shadows, name)
        await shadows.round()
        assert await shadows.shown() == {"n1/gpu-0": ["whole"]}


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"claims": [{"name": "gpu", "resourceClaimName": "its-own"}]}, id="by a claim"),
        pytest.param(
            {"limits": {"deviceclass.resource.kubernetes.io/gpu.carrel.dev": "1"}}, id="by the resource of a class"
        ),
    ],
)
async def test_what_is_kept_for_a_booked_pod_is_shown_as_full_unless_it_asks_any_scheduler(asked: Json) -> None:
    async with a_shadow_lab() as shadows:
        await share(shadows, "train")
        by_pod = await shadows.replica.sees(await shadows.lab.pod("booked", limits={"nvidia.com/gpu": "1"}))
        by_claim = await shadows.replica.sees(await shadows.lab.pod("claims", **asked))
        writer = shadows.replica.lease_writer
        assert await writer.keep_for(N1.gpus[0], holder_of(by_pod), ())
        assert await writer.keep_for(N1.gpus[1], holder_of(by_claim), ())
        await shadows.round()
        assert await shadows.shown() == {"n1/gpu-0": ["12276Mi", "4000Mi"]}


async def test_a_gpu_that_is_set_aside_is_shown_as_full_unless_its_device_has_a_taint() -> None:
    async with a_shadow_lab() as shadows:
        lab = shadows.lab
        status = await lab.client.get(GPU_NODE_STATUSES, "n1")
        devices = [{**each, "health": "Unhealthy", "reason": "XID 79"} for each in status["status"]["devices"]]
        broken = MergePatch({"status": {"devices": devices}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", broken, subresource="status")
        await eventually(lambda: all(entry.gpu.unusable for entry in shadows.replica.ledger.entries(N1.name)))
        found = (await lab.client.get(RESOURCE_SLICES, "n1-gpu.carrel.dev"))["spec"]["devices"]
        found[1]["taints"] = [{"key": "carrel.dev/unusable", "effect": "NoSchedule"}]
        await lab.client.patch(RESOURCE_SLICES, "n1-gpu.carrel.dev", MergePatch({"spec": {"devices": found}}))
        await shadows.round()
        assert await shadows.shown() == {"n1/gpu-0": ["16276Mi"]}


async def test_what_was_interrupted_or_changed_by_somebody_is_put_right() -> None:
    async with a_shadow_lab() as shadows:
        await share(shadows, "train")
        await shadows.round()
        (claim,) = (await shadows.lab.client.list(RESOURCE_CLAIMS, OURS_ONLY)).items
        name = claim.metadata.name
        nobody = MergePatch({"status": {"allocation": None, "reservedFor": None}})
        await shadows.lab.client.patch(RESOURCE_CLAIMS, name, nobody, OURS, subresource="status")
        assert await shadows.round() == 1
        assert await shadows.shown() == {"n1/gpu-0": ["4000Mi"]}

        whole = await shadows.lab.client.get(RESOURCE_CLAIMS, name, OURS)
        await shadows.lab.client.update(RESOURCE_CLAIMS, {**whole, "status": {}}, subresource="status")
        whole = await shadows.lab.client.get(RESOURCE_CLAIMS, name, OURS)
        await shadows.lab.client.update(RESOURCE_CLAIMS, allocated(whole, {"n1/gpu-1": "1Mi"}), subresource="status")
        await shadows.round()
        assert await shadows.shown() == {"n1/gpu-0": ["4000Mi"]}


async def test_a_claim_that_only_looks_like_a_shadow_is_deleted_here_and_left_alone_elsewhere() -> None:
    async with a_shadow_lab() as shadows:
        for namespace, lease in ((OURS, "nonsense"), (OURS, "gpu-gone-3"), ("lab", "gpu-n1-0")):
            body = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    "generateName": "x-",
                    "labels": {"carrel.dev/shadow": "true"},
                    "annotations": {"carrel.dev/lease": lease},
                },
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev"}}]}},
            }
            await shadows.lab.client.create(RESOURCE_CLAIMS, body, namespace)
        await shadows.round()
        left = (await shadows.lab.client.list(RESOURCE_CLAIMS)).items
        assert [claim.metadata.namespace for claim in left] == ["lab"]


@pytest.mark.parametrize(
    ("user", "passes"),
    [("system:serviceaccount:carrel:carrel-controller", True), ("system:kube-scheduler", False), ("admin", False)],
)
async def test_the_gate_takes_nothing_for_a_shadow_and_lets_only_the_controller_allocate_it(
    user: str, passes: bool
) -> None:
    async with a_shadow_lab() as shadows:
        await share(shadows, "train")
        await shadows.round()
        held = await shadows.lab.held()
        (claim,) = (await shadows.lab.client.list(RESOURCE_CLAIMS, OURS_ONLY)).items
        after = await shadows.lab.client.get(RESOURCE_CLAIMS, claim.metadata.name, OURS)
        refusal = await Gate(shadows.replica).ask(after, {**after, "status": {}}, user=user)
        assert (refusal is None) == passes
        assert passes or "carrel.dev/shadow" in str(refusal)
        assert await shadows.lab.held() == held


async def test_another_claim_in_carrels_namespace_goes_through_the_gate() -> None:
    async with a_shadow_lab() as shadows:
        claim = await new_claim(shadows.lab, "train", OURS)
        assert await Gate(shadows.replica).allocate(shadows.lab, claim, {"n1/gpu-0": "8138Mi"}) is None
        assert await shadows.lab.held() == {"gpu-n1-0": {claim["metadata"]["uid"]: 8138}}


async def test_shadows_are_no_holders_for_collector_ledger_and_invariants() -> None:
    async with a_shadow_lab() as shadows:
        pod = await share(shadows, "train")
        await shadows.round()
        held = await shadows.lab.held()
        assert await shadows.replica.collector.collect() == []
        assert await shadows.lab.held() == held == {"gpu-n1-0": {pod["metadata"]["uid"]: 4000}}
        assert await shadows.lab.violations() == []
        shadows.replica.ledger.audit()


async def test_where_claims_are_not_counted_any_more_the_shadows_are_deleted() -> None:
    async with a_shadow_lab() as shadows:
        await share(shadows, "train")
        await shadows.round()
        theirs = await new_claim(shadows.lab, "theirs", OURS)
        async with shadows.lab.replica() as without:
            removal = LeftShadows(without)
            assert not await removal.is_done()
            assert await removal.is_done()
        left = (await shadows.lab.client.list(RESOURCE_CLAIMS)).items
        assert [claim.metadata.uid for claim in left] == [theirs["metadata"]["uid"]]


async def test_a_claim_that_was_deallocated_is_seen_by_its_shadowless_gpu() -> None:
    """A pod may take at once what a claim has given back, and its shadow follows."""
    async with a_shadow_lab(a_node("n1", gpus=1)) as shadows:
        claim = await new_claim(shadows.lab, "train")
        gate = Gate(shadows.replica)
        assert await gate.allocate(shadows.lab, claim, {"n1/gpu-0": "16276Mi"}) is None
        await shadows.round()
        await deallocate(shadows.lab, "train")
        await shadows.seen()
        shadows.lab.clock.now = shadows.lab.clock.now.replace(hour=13)
        for _ in range(2):
            await shadows.replica.collector.collect()
            shadows.lab.clock.now = shadows.lab.clock.now.replace(hour=14)
        await share(shadows, "next")
        await shadows.round()
        assert await shadows.shown() == {"n1/gpu-0": ["4000Mi"]}


async def test_the_leader_follows_changes_by_itself() -> None:
    async with a_shadow_lab() as shadows:
        leading = asyncio.create_task(shadows.claims.run())

        async def allocated_shadows() -> int:
            claims = (await shadows.lab.client.list(RESOURCE_CLAIMS, OURS_ONLY)).items
            return sum(claim.status.allocation is not None for claim in claims)

        await share(shadows, "one")
        await share(shadows, "two")
        await becomes(allocated_shadows, 2)
        await shadows.lab.client.delete(RESOURCE_SLICES, "n1-gpu.carrel.dev")
        await becomes(allocated_shadows, 0)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
