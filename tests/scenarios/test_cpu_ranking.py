"""Which node is best by the CPU that it has left: seen through the watches of an extender."""

import json
from typing import Any

import msgspec
import pytest

from carrel.cluster.pod_requests import Asked
from carrel.ids import NodeName
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.coverage import Covered
from carrel.scheduling.assembly import handlers_on, scheduler_on
from tests.kit.eventually import eventually
from tests.kit.gpus import A100, N1, N2, a_node
from tests.kit.lab import Lab, Replica, a_lab

NODES_OF_LAB = [a_node("n1", gpus=4), a_node("n2", gpus=4)]


def asking(cores: int, gpus: int = 1) -> dict[str, str]:
    return {"cpu": f"{cores}", "memory": "1Gi"} | ({"nvidia.com/gpu": f"{gpus}"} if gpus else {})


async def has_cores(lab: Lab, replica: Replica, **cores: int) -> None:
    for node, number in cores.items():
        allocatable = {"cpu": f"{number}", "memory": "1024Gi", "pods": "110"}
        await lab.client.patch(NODES, node, MergePatch({"status": {"allocatable": allocatable}}), subresource="status")
        await eventually(lambda node=node, number=number: free_cores(replica, node) == number)  # type: ignore[misc] # bound now


def free_cores(replica: Replica, node: str) -> float:
    machines = replica.scheduler._ranking.machines
    return machines.free[NodeName(node)].cpu_milli / 1000 if node in machines.free else -1


async def ranked(lab: Lab, replica: Replica, name: str, limits: dict[str, str]) -> list[str]:
    pod = await replica.sees(await lab.pod(name, limits=limits))
    replica.filter(pod, [N1, N2])
    return list(replica.scheduler.rank(pod, [N1, N2]))


async def test_a_pod_with_much_cpu_goes_where_the_other_gpus_keep_theirs() -> None:
    async with a_lab(NODES_OF_LAB) as lab, lab.replica() as replica:
        await has_cores(lab, replica, n1=32, n2=64)

        assert await ranked(lab, replica, "usual", asking(8)) == ["n1", "n2"]
        assert await ranked(lab, replica, "large", asking(24)) == ["n2", "n1"]


async def test_what_other_pods_take_of_a_machine_is_seen_until_they_are_gone() -> None:
    async with a_lab(NODES_OF_LAB) as lab, lab.replica() as replica:
        await has_cores(lab, replica, n1=32, n2=32)
        pod = await lab.pod("web", limits=asking(8, gpus=0))

        assert await replica.bind(pod, "n1") is None
        await eventually(lambda: free_cores(replica, "n1") == 24)
        await lab.client.patch(PODS, "web", MergePatch({"status": {"phase": "Succeeded"}}), "lab", subresource="status")
        await eventually(lambda: free_cores(replica, "n1") == 32)


async def test_what_is_usual_is_learnt_from_the_pods_that_exist_after_a_restart() -> None:
    async with a_lab(NODES_OF_LAB) as lab, lab.replica() as replica:
        for number in range(3):
            await replica.sees(await lab.pod(f"p{number}", limits=asking(8)))
        again = scheduler_on(replica)

        again.learn(replica.pods.store)

        mix = again._ranking.demand.mix
        assert mix.cpu_milli_per_gpu == 8000
        assert [typical.cpu_milli for typical in mix.typical] == [8000]


async def test_a_replica_that_is_not_asked_learns_from_the_pods_that_another_binds() -> None:
    async with a_lab(NODES_OF_LAB) as lab, lab.replica() as asked, lab.replica() as standby:
        for number in range(3):
            pod = await lab.pod(f"p{number}", limits=asking(8))
            asked.scheduler.filter(await asked.sees(pod), (N1, N2), chooses=True)
            assert await asked.bind(pod, "n1") is None

        seen = [replica.scheduler._ranking.demand for replica in (asked, standby)]
        for replica in (asked, standby):
            await eventually(lambda: sum(bool(pod.spec.node_name) for pod in replica.pods.store) == 3)  # noqa: B023 # awaited

    assert [demand._pods for demand in seen] == [3, 3], "each pod once, also where it was asked about"
    assert [demand.mix.cpu_milli_per_gpu for demand in seen] == [8000, 8000]


async def test_what_a_pod_asks_for_is_read_once_when_it_is_learnt() -> None:
    async with a_lab(NODES_OF_LAB) as lab, lab.replica() as replica:
        await replica.sees(await lab.pod("p", limits=asking(8)))
        read: list[str] = []
        as_admitted = replica.requests.as_admitted

        def note(pod: Pod, covered: Covered | None = None) -> Asked:
            read.append(pod.metadata.name)
            return as_admitted(pod, covered)

        replica.requests.as_admitted = note  # type: ignore[method-assign]

        scheduler_on(replica).learn(iter(replica.pods.store))

    assert read == ["p"]


async def test_a_defect_in_prioritize_is_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_lab(NODES_OF_LAB) as lab, lab.replica() as replica:
        handlers = handlers_on(replica, replica.scheduler)
        monkeypatch.setattr(replica.scheduler, "rank", lambda pod, nodes: 1 / 0)
        pod = await lab.pod("p", limits=asking(8))
        await replica.sees(pod)
        body = msgspec.json.encode({"Pod": await lab.client.get(PODS, "p", "lab"), "NodeNames": ["n1", "n2"]})

        answer = handlers.prioritize(body)

        assert (answer.status, b"Carrel made a mistake" in answer.body) == (500, True)
        assert 'carrel_refusals_total{kind="defect",verb="prioritize"} 1.0' in handlers.metrics_text().decode()


async def test_a_pod_without_a_gpu_is_ranked_only_for_the_profile_that_asks_for_it() -> None:
    async with a_lab(NODES_OF_LAB) as lab, lab.replica() as replica:
        await has_cores(lab, replica, n1=32, n2=64)
        await ranked(lab, replica, "usual", asking(8))
        handlers = handlers_on(replica, replica.scheduler)

        def scores(scheduler: str) -> dict[str, int]:
            container = {"name": "c", "resources": {"requests": asking(8, gpus=0)}}
            spec = {"schedulerName": scheduler, "containers": [container]}
            pod = {"metadata": {"name": "web", "namespace": "lab", "uid": "u"}, "spec": spec}
            body: dict[str, Any] = {"Pod": pod, "NodeNames": ["n1", "n2", "without-gpus"]}
            answer = json.loads(handlers.prioritize(json.dumps(body).encode()).body)
            return {each["Host"]: each["Score"] for each in answer}

        assert scores("carrel-cpu") == {"without-gpus": 10, "n2": 9, "n1": 8}
        assert set(scores("gpu-scheduler").values()) == {0}


async def test_a_pod_that_no_node_could_serve_does_not_change_what_is_usual() -> None:
    async with a_lab([a_node("n1", gpus=4, model=A100), a_node("n2", gpus=4)]) as lab, lab.replica() as replica:
        await has_cores(lab, replica, n1=32, n2=32)
        for number in range(3):
            await replica.sees(await lab.pod(f"p{number}", limits=asking(8)))
        many = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "1000000", "carrel.dev/gpu-model": A100}
        absurd = [
            await replica.sees(await lab.pod("many", annotations=many)),
            await replica.sees(await lab.pod("large", limits=asking(1_000_000))),
        ]
        scheduler = scheduler_on(replica)

        scheduler.learn(replica.pods.store)
        for pod in absurd:
            scheduler.filter(pod, [N1, N2])
            scheduler.filter(pod, [N1, N2], chooses=True)

        mix = scheduler._ranking.demand.mix
        assert [(str(typical.request), typical.cpu_milli) for typical in mix.typical] == [("1 whole GPU", 8000)]
        assert mix.cpu_milli_per_gpu == 8000
