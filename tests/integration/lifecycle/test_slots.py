"""The slot reconciler by itself, where the kubelet chooses: from a wanted reservation to the end of the last pod."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from carrel.kubernetes.cluster import DeleteOptions
from carrel.kubernetes.objects.resources import PODS
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.lifecycle.reservations.slot_reconciler import SlotReconciler
from tests.kit.coexist import RESERVATIONS, Kubelet, coexisting, create_reservation_namespace, reservation_pods
from tests.kit.eventually import eventually
from tests.kit.gpus import N1
from tests.kit.lab import Lab, Replica, a_lab


class Leader:
    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.metrics = ControllerMetrics(lambda: True)
        self.rooms: list[str] = []
        self.reconciler = SlotReconciler(replica, replica.reservations, self.rooms.append, self.metrics)

    def counts(self, state: str) -> bool:
        return f'carrel_reservations{{state="{state}"}} 1.0' in self.metrics.text().decode()


@contextlib.asynccontextmanager
async def a_leader(lab: Lab, kubelet: Kubelet) -> AsyncIterator[Leader]:
    """Together with a kubelet."""

    async def work() -> None:
        while True:
            await kubelet.work()
            await asyncio.sleep(0.005)

    async with lab.replica() as replica:
        leader = Leader(replica)
        running = [asyncio.create_task(leader.reconciler.run()), asyncio.create_task(work())]
        yield leader
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_reservation_pod_is_created_labelled_lost_created_again_and_deleted() -> None:
    node = coexisting("n1", gpus=1)
    async with a_lab([node], in_real_time=True) as lab:
        await create_reservation_namespace(lab)
        async with a_leader(lab, Kubelet(lab, node)) as leader, lab.replica() as extender:
            assert await extender.bind(await lab.pod("a", annotations={"gpu-fraction": "0.5"}), "n1") is None

            def labels() -> bool:
                pod = leader.replica.pods.store.get("a", "lab")
                return pod is not None and pod.metadata.labels.get("runai-gpu-group") == "gpu-n1-0"

            await eventually(labels)
            await eventually(lambda: leader.counts("held"))
            assert leader.rooms == ["n1"]
            (before,) = await reservation_pods(lab)
            await lab.client.delete(PODS, before.metadata.name, RESERVATIONS, how=DeleteOptions(grace_seconds=0))

            def is_another() -> bool:
                lease = leader.replica.cluster_ledger.lease("gpu-n1-0")
                reservation = lease.record.reservation if lease else None
                return reservation is not None and reservation.pod not in ("", before.metadata.uid)

            await eventually(is_another)
            await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
            await eventually(lambda: leader.replica.pods.store.get("a", "lab") is None)
            lab.clock.now = lab.clock.now.replace(year=lab.clock.now.year + 1)  # long enough for every time-out
            await leader.replica.collector.collect()
            await eventually(lambda: leader.replica.cluster_ledger.lease("gpu-n1-0") is None)

        assert await reservation_pods(lab) == []
        assert await lab.held() == {}


async def test_a_kubelet_without_gpus_is_asked_once_and_not_again_and_again() -> None:
    """The Node still says that it has them: its plugin has just gone, or calls them unhealthy."""
    node = coexisting("n1", gpus=2)
    async with a_lab([node], in_real_time=True) as lab:
        await create_reservation_namespace(lab)
        kubelet = Kubelet(lab, node)
        kubelet.unhealthy = {gpu.uuid for gpu in node.gpus}
        async with a_leader(lab, kubelet) as leader, lab.replica() as extender:
            pod = await lab.pod("a", annotations={"gpu-fraction": "0.5"})
            refusal = await extender.bind(pod, "n1")
            assert refusal is not None
            assert "UnexpectedAdmissionError" in refusal.reason
            for _ in range(20):  # kube-scheduler does not give up
                seen = await extender.sees(pod)
                assert not extender.filter(seen, [N1]).fitting or await extender.scheduler.bind(seen, N1)
                await kubelet.report_users()  # events that wake the reconciler
            seen = await leader.replica.sees(pod)
            why = await eventually(lambda: leader.replica.waiting_reason.why(seen))

        assert kubelet.refused == 1
        assert why is not None
        assert "UnexpectedAdmissionError" in why.reason


async def test_a_gpu_that_only_the_kubelet_knows_is_found_when_the_agent_reports_it() -> None:
    node = coexisting("n1", gpus=1)
    async with a_lab([node], in_real_time=True) as lab:
        await create_reservation_namespace(lab)
        kubelet = Kubelet(lab, node)
        kubelet.is_silent = True  # the program in the reservation pod sees no GPU
        async with a_leader(lab, kubelet), lab.replica() as extender:
            pod = await lab.pod("a", annotations={"gpu-fraction": "0.5"})
            binding = asyncio.ensure_future(extender.bind(pod, "n1"))
            await eventually(lambda: bool(kubelet.given))
            await kubelet.report_users()
            assert await binding is None
