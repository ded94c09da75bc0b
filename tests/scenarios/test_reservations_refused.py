"""Where the kubelet has fewer GPUs to give than Carrel believes: pods are told why, and run when there is one."""

import asyncio
from datetime import timedelta

from carrel.ledger.refusals import Refusal
from tests.kit.coexist import (
    reservation_pods,
)
from tests.kit.coexist_node import HALF, a_coexist_node
from tests.kit.eventually import eventually
from tests.kit.gpus import N1


async def test_a_refused_reservation_pod_is_not_made_again_at_once_and_the_kubelets_words_reach_the_pod() -> None:
    async with a_coexist_node() as node_lab:
        node_lab.kubelet.unhealthy = {"GPU-n1-0", "GPU-n1-1"}  # and its Node does not say so yet
        pod = await node_lab.lab.pod("a", annotations=HALF)
        refusal = await node_lab.bind(pod)
        assert refusal is not None
        words = "the kubelet of n1 gave no GPU: UnexpectedAdmissionError: Allocate failed due to requested number"
        assert words in refusal.reason

        await node_lab.reconcile()
        assert node_lab.kubelet.refused == 1
        assert await reservation_pods(node_lab.lab) == []
        why = node_lab.replica.waiting_reason.why(await node_lab.replica.sees(pod))
        assert why is not None
        assert words in why.reason, "also for the command line and the Event"
        async with node_lab.lab.replica() as other:
            assert not other.filter(await other.sees(pod), [N1]).fitting, "also for the next process"


async def test_refused_reservation_pods_are_made_less_and_less_often_and_the_pod_runs_when_a_gpu_is_there() -> None:
    async with a_coexist_node() as node_lab:
        node_lab.kubelet.unhealthy = {"GPU-n1-0", "GPU-n1-1"}
        pod = await node_lab.lab.pod("a", annotations=HALF)
        for _ in range(60 * 6):  # an hour in steps of ten seconds
            if node_lab.replica.filter(await node_lab.replica.sees(pod), [N1]).fitting:
                await node_lab.bind(pod)
            await node_lab.reconcile(1)
            node_lab.lab.clock.now += timedelta(seconds=10)
            await node_lab.kubelet.report_users()  # a heartbeat of the agent does not matter
        assert 10 <= node_lab.kubelet.refused <= 25

        node_lab.kubelet.unhealthy = set()
        node_lab.lab.clock.now += timedelta(minutes=6)
        await node_lab.reconcile()
        assert await node_lab.bind(pod) is None


async def test_pods_join_a_gpu_that_is_held_while_the_kubelet_has_no_other() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        node_lab.kubelet.unhealthy = {"GPU-n1-0"}
        refusal = await node_lab.bind(await node_lab.lab.pod("two", annotations={"gpu-fraction": "0.9"}))
        assert refusal is not None
        await node_lab.reconcile()

        await node_lab.run_pod("b", annotations=HALF)
        assert await node_lab.gpu_of("b") == await node_lab.gpu_of("a")


async def test_an_unhealthy_gpu_that_the_kubelet_gives_out_does_not_keep_a_pod_from_a_healthy_one() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.kubelet.advertise()
        await node_lab.kubelet.report_health("GPU-n1-1")  # the kubelet of these tests always chooses the last GPU
        await eventually(lambda: node_lab.replica.ledger.rooms[N1].whole == 1)
        pod = await node_lab.lab.pod("a", annotations=HALF)
        refusal = await node_lab.bind(pod)
        assert refusal == Refusal("the kubelet gave GPU 1 of n1, which is not in use: XID 79; another one is tried")

        assert await node_lab.bind(pod) is None
        assert await node_lab.gpu_of("a") == "GPU-n1-0"
        node_lab.lab.clock.now += timedelta(minutes=1)
        await node_lab.reconcile()
        assert len(await reservation_pods(node_lab.lab)) == 2, "one of them keeps the unhealthy GPU from other pods"

        await node_lab.kubelet.report_health("")
        await eventually(lambda: not any(gpu.unusable for gpu in node_lab.replica.cluster_ledger.reported(N1).gpus))  # type: ignore[union-attr] # reported
        await node_lab.reconcile()
        assert len(await reservation_pods(node_lab.lab)) == 1
        assert node_lab.replica.ledger.rooms[N1].whole == 1


async def test_the_kubelets_list_says_which_gpu_a_reservation_pod_has_where_its_program_sees_none() -> None:
    async with a_coexist_node() as node_lab:
        node_lab.kubelet.is_silent = True
        binding = asyncio.ensure_future(node_lab.bind(await node_lab.lab.pod("a", annotations=HALF)))
        while not binding.done():
            await asyncio.sleep(0.001)
            if node_lab.kubelet.given:
                await node_lab.kubelet.report_users()

        assert await binding is None
        assert await node_lab.gpu_of("a") == "GPU-n1-1"
