"""Faults while people use, change and cancel bookings, by seed: two schedulers and two controllers crash and fail.

At every moment no pod that a booking covers, by what the API server says, is a victim. After the faults pods, Leases
and bookings say what the function of the bookings says: no booking covers more GPUs than were booked, and no covered
pod waits while an opportunistic pod holds a GPU that would do.

`CARREL_SWEEP=1000` tries that many seeds; a failing one is in the name of its test, and its story is printed.
"""

import contextlib
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import read_lease
from carrel.dialects.hand_over_record import Why, read_record
from carrel.dialects.tier import tier_of
from carrel.ids import BookingId
from carrel.kubernetes.cluster import DeleteOptions, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.kinds import Lease
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, PODS
from carrel.parsing.time import seconds
from tests.kit.eventually import eventually
from tests.kit.fault_run import TierFaultRun
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import WHOLE, TierController, catch_up, end_deleted, pods_of, settle

SEEDS = int(os.environ.get("CARREL_SWEEP", "25"))
NODES = (N1, N2)
PEOPLE = ("ada", "bob", "eve")
HALF = {"gpu-fraction": "0.5"}


class BookingsRun(TierFaultRun):
    """The faults of one seed."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.pods = 0
        self.bookings = 0
        self.deleted: set[str] = set()
        """The names of pods that their users have deleted."""

    async def run(self) -> None:
        for person in PEOPLE[:2]:
            await self._book(person)
        async with contextlib.AsyncExitStack() as stack:
            calm = await stack.enter_async_context(self.lab.replica())
            for _ in range(16):
                await self._users()
                covered, before = await covered_now(self.lab, calm), await ended_by_carrel(self.lab, self.deleted)
                await self.one_step(stack, NODES)
                victims = await ended_by_carrel(self.lab, self.deleted) - before
                still = covered & await covered_now(self.lab, calm)
                assert not still & victims, f"a pod that a booking covers is a victim: {still & victims}"
                await end_deleted(self.lab)

    # --- what people do ----------------------------------------------------------------------------------------------

    async def _users(self) -> None:
        self.lab.clock.now += timedelta(seconds=self.random.randint(1, 40))
        for _ in range(self.random.randint(1, 2)):
            if self.random.random() < 0.6:
                await self._create_pod()
            elif self.random.random() < 0.5:
                await self._delete_pod()
            else:
                await self._change_a_booking()

    async def _create_pod(self) -> None:
        self.pods += 1
        notes = {"carrel.dev/user": f"{self.random.choice(PEOPLE)}@lab.example", "carrel.dev/tier": "opportunistic"}
        asks: dict[str, Any] = {"annotations": {**notes, **HALF}}
        if self.random.random() < 0.6:
            asks = {"annotations": notes, "limits": WHOLE}
        await self.lab.pod(f"p{self.pods}", **asks)

    async def _delete_pod(self) -> None:
        names = sorted(await pods_of(self.lab))
        if names:
            grace, name = DeleteOptions(grace_seconds=self.random.choice([0, 30])), self.random.choice(names)
            self.deleted.add(name)
            with contextlib.suppress(NotFound):
                await self.lab.client.delete(PODS, name, "lab", how=grace)

    async def _book(self, person: str) -> None:
        self.bookings += 1
        members = [f"{each}@lab.example" for each in PEOPLE] if self.random.random() < 0.3 else []
        start = self.lab.clock.now + timedelta(minutes=self.random.choice([-60, -60, -60, 2]))
        end = self.lab.clock.now + timedelta(minutes=self.random.choice([3, 60, 600]))
        user = "" if members else f"{person}@lab.example"
        gpus = self.random.randint(1, 2)
        await self.lab.book(user, gpus, name=f"b{self.bookings}", members=members, start=start, end=end)

    async def _change_a_booking(self) -> None:
        bookings = [each for each in (await self.lab.client.list(BOOKINGS)).items if each.metadata.name != "enough"]
        if not bookings or self.random.random() < 0.3:
            await self._book(self.random.choice(PEOPLE))
            return
        name = self.random.choice(sorted(each.metadata.name for each in bookings))
        if self.random.random() < 0.3:
            await self.lab.client.delete(BOOKINGS, name)
            return
        end = self.lab.clock.now + timedelta(minutes=self.random.choice([1, 30, 900]))
        change = self.random.choice([{"end": seconds(end)}, {"gpus": self.random.randint(1, 2)}])
        await self.lab.client.patch(BOOKINGS, name, MergePatch({"spec": change}))


async def covered_now(lab: Lab, calm: Replica) -> set[str]:
    """The uids of the covered pods that hold GPUs, by what the API server says now. `calm` meets no faults."""
    await catch_up(lab, calm)
    there = versions((await lab.client.list(LEASES, Selection("carrel"))).items)
    await eventually(lambda: versions(calm.leases.store) == there, "the cache shows the Leases as they are")
    return {
        pod.metadata.uid
        for pod in calm.pods.store
        if calm.covered_pods.of(pod.metadata.uid) is not None and calm.ledger.shares_of(pod.metadata.uid)
    }


def versions(leases: Iterable[Lease]) -> dict[str, str]:
    return {each.metadata.uid: each.metadata.resource_version for each in leases}


async def ended_by_carrel(lab: Lab, deleted: set[str]) -> set[str]:
    """The uids of pods that have lost their GPU to a booked pod, or are about to."""
    records = map(read_record, (await lab.client.list(CONFIG_MAPS, Selection("carrel"))).items)
    pods = [pod for name, pod in (await pods_of(lab)).items() if name not in deleted]
    ending = {pod.metadata.uid for pod in pods if pod.metadata.deletion_timestamp}
    return ending | {record.uid for record in records if record is not None and record.why is Why.REVOKED}


async def check_at_rest(lab: Lab) -> None:
    assert await lab.violations() == []
    async with lab.replica() as calm:
        booked = {each.metadata.name: each.spec.gpus for each in calm.bookings.store}
        touched: dict[str, set[str]] = {}
        for lease in (await lab.client.list(LEASES, Selection("carrel"))).items:
            record = read_lease(lease)
            assert record is not None
            for share in record.shares:
                pod = calm.pods.store.by_uid(share.holder.uid)
                assert pod is not None, "a share of a pod that is gone"
                covered = calm.covered_pods.of(pod.metadata.uid)
                recorded = share.coverage.booking if share.coverage else ""
                assert recorded == (covered.entitlement.booking if covered else ""), "the record is not the truth"
                if recorded:
                    touched.setdefault(recorded, set()).add(record.gpu)
        assert all(len(gpus) <= booked[BookingId(booking)] for booking, gpus in touched.items()), touched
        for pod in calm.pods.store:
            if "carrel.dev/tier" in pod.metadata.annotations:
                assert tier_of(pod) is calm.covered_pods.tier(pod), f"{pod.metadata.name} was told {tier_of(pod)}"
        for booking in calm.bookings.store:
            assert (booking.status.used or 0) == len(touched.get(booking.metadata.name, ()))
        for waiting in calm.booked_waiting():
            nodes = [name for name in waiting.nodes if name in NODES]
            low = [pod for pod in calm.pods.store if calm.pod_facts(pod).leaves_room and pod.spec.node_name in nodes]
            whole = [pod for pod in low if pod.spec.containers[0].resources.limits]
            assert not whole, f"{waiting.holder} waits, and {[pod.metadata.name for pod in whole]} have GPUs"


async def come_to_rest(lab: Lab) -> None:
    """After the faults, a healthy controller repairs everything."""
    async with lab.replica() as replica:
        controller = TierController(replica)
        for _ in range(5):
            await settle(lab, controller, NODES)
            lab.clock.now += timedelta(minutes=5)  # whatever was half done has had its time
        await catch_up(lab, replica)
        await settle(lab, controller, NODES)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_faults_break_no_promise_of_a_booking(seed: int) -> None:
    async with a_lab([a_node(name, gpus=2) for name in NODES]) as lab:
        run = BookingsRun(lab, seed)
        try:
            await run.run()
            await come_to_rest(lab)
            await check_at_rest(lab)
        except BaseException:
            print("\n".join(run.story))
            raise


async def test_every_kind_of_change_happens_in_the_sweep() -> None:
    starts = bookings = pods = 0
    for seed in range(4):
        async with a_lab([a_node(name, gpus=2) for name in NODES]) as lab:
            run = BookingsRun(lab, seed)
            await run.run()
            starts, bookings, pods = starts + run.starts, bookings + run.bookings, pods + run.pods

    assert starts >= 12, "two are started in every run; the others replace killed ones"
    assert bookings >= 8 and pods >= 30
