"""Faults, by seed, with claims and pods on the same GPUs: crashes after every write, lost answers, stale caches.

Webhook, extender and controller are two replicas that are killed and started again; schedulers give up between the
gate's yes and their write, and some write past the gate; the node's agent hands claims over, and is killed too.

At every moment: no GPU is oversubscribed; every claim that the gate let through has its GPUs on Leases, and so has
every claim that was handed over (it never loses them before it is given back).
After the faults: nothing is lost and nothing is leaked, what fits is recorded, and schedulers are shown what pods hold.
"""

import asyncio
import contextlib
import os
from datetime import timedelta

import pytest

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import NodeName
from carrel.kubernetes.cluster import ClusterError, Conflict, DeleteOptions, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.resources import PODS
from carrel.resource_claims.allocation.unrecorded_claims import UnrecordedClaims
from carrel.resource_claims.objects import RESOURCE_CLAIMS, ResourceClaim
from carrel.resource_claims.shadows.shadow_claims import ShadowClaims
from tests.kit.dra import Gate, allocated, deallocate, new_claim, publish, store
from tests.kit.eventually import eventually
from tests.kit.fault_run import ReplicaFaultRun
from tests.kit.gpus import a_node
from tests.kit.lab import OURS, Lab, Replica, a_lab

SEEDS = int(os.environ.get("CARREL_SWEEP", "25"))
MEMORY = 1000
GPUS = ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0")
AMOUNTS = ("300Mi", "500Mi", "1000Mi", "")


class ClaimRun(ReplicaFaultRun):
    """Schedulers allocate claims through two gates, pods are bound beside them, and both come and go."""

    STEPS = 14

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.names = 0
        self.allocated = 0
        self.past_the_gate: set[str] = set()
        """Claims that have an allocation which no gate has seen."""
        self.prepared: dict[str, set[str]] = {}
        """What the agents have handed over: uid of a claim → Leases."""

    async def start(self, stack: contextlib.AsyncExitStack) -> Replica:
        faulty = self.faulty_transport(self.random.randint(2, 12), stale_list=0.2)
        return await stack.enter_async_context(self.lab.replica(faulty, dra=True))

    async def one_step(self, replica: Replica) -> None:
        self.lab.clock.now += timedelta(seconds=self.random.choice([0, 10, 40]))
        self.names += 1
        await new_claim(self.lab, f"c{self.names}")
        await self.lab.pod(f"p{self.names}", limits={"aliyun.com/gpu-mem": self.random.choice(["300", "600"])})
        gate = Gate(replica)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(self._allocate(gate, f"c{self.random.randint(1, self.names)}"))
            tasks.create_task(self._bind(replica, f"p{self.names}"))
        await self._prepare()
        await self._end_something()
        await self._control(replica)

    async def check(self) -> None:
        held = await check_always(self.lab)
        for claim in (await self.lab.client.list(RESOURCE_CLAIMS, Selection("lab"))).items:
            for name in gpus_of(claim) if claim.metadata.uid not in self.past_the_gate else ():
                assert claim.metadata.uid in held.get(name, {}), f"{claim.metadata.name} has {name} without a Lease"
        for uid, leases in self.prepared.items():
            assert all(uid in held.get(name, {}) for name in leases), f"{uid} uses {leases}, the Leases say {held}"

    async def _allocate(self, gate: Gate, name: str) -> None:
        """As a scheduler; its write may be lost after the gate's yes, or may not be asked about."""
        wanted = self.random.sample(GPUS[:2], 2) if self.random.random() < 0.2 else [self.random.choice(GPUS)]
        given = {place: self.random.choice(AMOUNTS) for place in wanted}
        way = self.random.random()
        with contextlib.suppress(ClusterError):
            claim = await self.lab.client.get(RESOURCE_CLAIMS, name, "lab")
            if claim.get("status", {}).get("allocation"):
                return
            if way < 0.1:
                self.past_the_gate.add(claim["metadata"]["uid"])
                await store(self.lab, allocated(claim, given))
            elif way < 0.3:
                await gate.ask(allocated(claim, given), claim)
            elif await gate.allocate(self.lab, claim, given) is None:
                self.allocated += 1
                self.past_the_gate.discard(claim["metadata"]["uid"])

    async def _bind(self, replica: Replica, name: str) -> None:
        with contextlib.suppress(ClusterError):
            pod = await eventually(lambda: replica.pods.store.get(name, "lab"))
            assert pod is not None
            await replica.scheduler.bind(pod, NodeName(self.random.choice(["n1", "n2"])))

    async def _prepare(self) -> None:
        """As the agents do when the kubelet asks: only what Leases name, and reported before the answer."""
        held = await self.lab.held()
        claims = (await self.lab.client.list(RESOURCE_CLAIMS, Selection("lab"))).items
        for claim in self.random.sample(claims, min(2, len(claims))):
            uid, leases = claim.metadata.uid, gpus_of(claim)
            if leases and all(uid in held.get(name, {}) for name in leases):
                self.prepared[uid] = leases
        await self._report()

    async def _report(self) -> None:
        for node, gpus in (("n1", 2), ("n2", 1)):
            status = (await self.lab.client.get(GPU_NODE_STATUSES, node))["status"]
            users = {
                index: [uid for uid, leases in self.prepared.items() if f"gpu-{node}-{index}" in leases]
                for index in range(gpus)
            }
            devices = [{**each, "inUseBy": users[each["id"]]} for each in status["devices"]]
            claims = sorted({uid for several in users.values() for uid in several})
            body = MergePatch({"status": {"devices": devices, "preparedClaims": claims}})
            await self.lab.client.patch(GPU_NODE_STATUSES, node, body, subresource="status")

    async def _end_something(self) -> None:
        number, now = self.random.randint(1, self.names), DeleteOptions(grace_seconds=0)
        with contextlib.suppress(NotFound, Conflict):
            match self.random.randrange(5):
                case 0:
                    self._unprepared((await deallocate(self.lab, f"c{number}"))["metadata"]["uid"])
                case 1:
                    gone = await self.lab.client.get(RESOURCE_CLAIMS, f"c{number}", "lab")
                    await self.lab.client.delete(RESOURCE_CLAIMS, f"c{number}", "lab", how=now)
                    self._unprepared(gone["metadata"]["uid"])
                case 2:
                    # By force: the claim is gone, and its containers still run.
                    await self.lab.client.delete(RESOURCE_CLAIMS, f"c{number}", "lab", how=now)
                case 3:
                    await self.lab.client.delete(PODS, f"p{number}", "lab", how=now)
        await self._report()

    def _unprepared(self, uid: str) -> None:
        self.prepared.pop(uid, None)
        self.past_the_gate.discard(uid)

    async def _control(self, replica: Replica) -> None:
        """A part of what the leader does; the other replica may believe that it leads, too."""
        assert replica.device_claims is not None
        with contextlib.suppress(ClusterError):
            await replica.collector.collect()
        shadows = ShadowClaims(replica, replica.device_claims)
        for node in ("n1", "n2"):
            with contextlib.suppress(ClusterError):
                await shadows.reconcile(NodeName(node))
        if self.random.random() < 0.3:
            unrecorded = UnrecordedClaims(replica, replica.device_claims)
            await unrecorded.treat(unrecorded.found())

    async def end(self) -> None:
        """All containers end, and all agents say so."""
        self.prepared.clear()
        await self._report()


def gpus_of(claim: ResourceClaim) -> set[str]:
    results = claim.status.allocation.devices.results if claim.status.allocation else ()
    return {f"gpu-{each.pool}-{each.device.removeprefix('gpu-')}" for each in results}


async def check_always(lab: Lab) -> dict[str, dict[str, int | None]]:
    held = await lab.held()
    for name, shares in held.items():
        assert None not in shares.values() or len(shares) == 1, f"{name}: {shares}"
        assert sum(memory or 0 for memory in shares.values()) <= MEMORY, f"{name}: {shares}"
    return held


async def shown(lab: Lab) -> dict[str, int]:
    """Lease → how much of its GPU schedulers are shown as held by pods."""
    found: dict[str, int] = {}
    for claim in (await lab.client.list(RESOURCE_CLAIMS, Selection(OURS))).items:
        assert claim.status.allocation is not None, f"{claim.metadata.name} shows nothing"
        (name,) = gpus_of(claim)
        memory = claim.status.allocation.devices.results[0].consumed_capacity["memory"]
        found[name] = found.get(name, 0) + int(memory.removesuffix("Mi"))
    return found


async def wait_shown(shadows: ShadowClaims) -> None:
    for _ in range(10_000):
        if not sum([await shadows.reconcile(NodeName(node)) for node in ("n1", "n2")]):
            return
        await asyncio.sleep(0.001)  # the watches have their turn
    raise AssertionError("there is always something more to write")


async def check_at_rest(lab: Lab) -> None:
    async with lab.replica(dra=True) as replica:
        assert replica.device_claims is not None
        unrecorded = UnrecordedClaims(replica, replica.device_claims)
        for _ in range(3):
            await replica.collector.collect()
            await unrecorded.treat(unrecorded.found())
            lab.clock.now += timedelta(seconds=100)
        await wait_shown(ShadowClaims(replica, replica.device_claims))
        left = {(each.lease, each.claim.metadata.uid) for each in unrecorded.found()}
        claims = (await lab.client.list(RESOURCE_CLAIMS, Selection("lab"))).items
        wanted = {(name, claim.metadata.uid) for claim in claims for name in gpus_of(claim)}
        bound, leases = await lab.bound(), await check_always(lab)
        held = {(name, uid) for name, shares in leases.items() for uid in shares}
        assert {each for each in held if each[1] not in bound} == wanted - left
        for unfit in unrecorded.found():
            free = MEMORY - sum(MEMORY if mib is None else mib for mib in leases.get(unfit.lease, {}).values())
            assert free < (MEMORY if unfit.memory is None else unfit.memory), f"{unfit} fits, and is not recorded"
        by_pods = {
            name: sum(MEMORY if mib is None else mib for uid, mib in shares.items() if uid in bound)
            for name, shares in leases.items()
        }
        assert await shown(lab) == {name: mib for name, mib in by_pods.items() if mib}
        replica.ledger.audit()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_claims_and_pods_never_share_what_only_one_can_have(seed: int) -> None:
    nodes = [a_node("n1", 2, MEMORY), a_node("n2", 1, MEMORY)]
    async with a_lab(nodes) as lab:
        await publish(lab, *nodes)
        run = ClaimRun(lab, seed)
        try:
            await run.run()
            await run.end()
            await check_at_rest(lab)
        except BaseException:
            print("\n".join(run.story))
            raise


async def test_every_kind_of_fault_happens_in_the_sweep() -> None:
    """The sweep is worth something only if, over all seeds, claims are allocated, handed over, and in trouble."""
    nodes = [a_node("n1", 2, MEMORY), a_node("n2", 1, MEMORY)]
    allocations = starts = lost = prepared = past = 0
    for seed in range(5):
        async with a_lab(nodes) as lab:
            await publish(lab, *nodes)
            run = ClaimRun(lab, seed)
            await run.run()
            allocations, starts = allocations + run.allocated, starts + run.starts
            prepared, past = prepared + len(run.prepared), past + len(run.past_the_gate)
            lost += sum("answer was lost" in line for line in run.story)

    assert allocations >= 10
    assert starts >= 15, "two are started in every run; the others replace killed ones"
    assert lost >= 3
    assert prepared >= 3
    assert past >= 1
