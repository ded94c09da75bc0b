"""Where NVIDIA's plugin gives MIG slices to pods, Carrel counts them, in both strategies of that plugin."""

from dataclasses import replace

import pytest

from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.dialects.mig import advertised_as_gpus
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from tests.kit.coexist import RESERVATIONS, reservation_pods
from tests.kit.coexist_node import CoexistNode, a_coexist_node
from tests.kit.eventually import eventually
from tests.kit.gpus import A100, N1, a_gpu, divided_gpu

SMALL = "nvidia.com/mig-1g.10gb"
MODEL = f"{A100}-MIG-1g.10gb"
SLICES = divided_gpu(profiles=("1g.10gb", "1g.10gb", "3g.40gb"))
MIXED = Node(N1, (a_gpu("n1", 1, 81920, model=A100), *SLICES), kubelet_chooses=True)
LABELS = {"nvidia.com/mig.strategy": "single"}
ALIKE = divided_gpu()
SINGLE = replace(Node(N1, advertised_as_gpus(ALIKE, LABELS), LABELS), kubelet_chooses=True)


def holders(node: CoexistNode) -> dict[str, list[str]]:
    entries = shown_gpus(node.replica.cluster_ledger, N1)
    return {entry.gpu.label: sorted(share.holder.name for share in entry.shares.values()) for entry in entries}


async def test_a_slice_is_given_by_the_kubelet_and_counted_among_those_of_its_profile() -> None:
    async with a_coexist_node(node=MIXED) as node:
        for name in ("a", "b"):
            await node.run_pod(name, limits={SMALL: "1"})
        await node.kubelet.work()
        await node.kubelet.report_users()
        await node.catch_up()
        await eventually(lambda: sum(map(bool, holders(node).values())) == 2)

        assert {label for label, pods in holders(node).items() if pods} == {"0:0", "0:1"}
        assert set(await node.lab.held()) == {"gpu-n1-1000", "gpu-n1-1001"}
        third = await node.lab.pod("c", limits={SMALL: "1"})
        assert isinstance(await node.bind(third), Refusal), "a slice of another profile, or a GPU, is none of those"
        await node.run_pod("large", limits={"nvidia.com/mig-3g.40gb": "1"})
        await node.run_pod("whole", limits={"nvidia.com/gpu": "1"})
        assert node.kubelet.refused == 0


async def test_with_the_single_strategy_slices_are_plain_gpus() -> None:
    async with a_coexist_node(node=SINGLE) as node:
        for number in range(7):
            await node.run_pod(f"student-{number}", limits={"nvidia.com/gpu": "1"})
        assert sorted(await node.lab.held()) == [f"gpu-n1-{index}" for index in range(1000, 1007)]
        late = await node.lab.pod("late", limits={"nvidia.com/gpu": "1"})
        assert isinstance(await node.bind(late), Refusal)
        assert node.kubelet.refused == 0


@pytest.mark.parametrize(
    ("cluster_node", "resource"),
    [pytest.param(MIXED, SMALL, id="mixed"), pytest.param(SINGLE, "nvidia.com/gpu", id="single")],
)
async def test_a_slice_that_is_asked_for_in_other_words_comes_from_a_reservation_pod(
    cluster_node: Node, resource: str
) -> None:
    words = {"carrel.dev/gpu-count": "1", "carrel.dev/gpu-model": MODEL}
    async with a_coexist_node(node=cluster_node) as node:
        await node.run_pod("by-model", annotations=words)

        (pod,) = await reservation_pods(node.lab)
        made = await node.lab.client.get(PODS, pod.metadata.name, RESERVATIONS)
        assert made["spec"]["containers"][0]["resources"]["limits"] == {resource: "1"}
        assert (await node.gpu_of("by-model")).startswith("MIG-n1-0-")


async def test_no_more_slices_are_promised_than_the_kubelet_has() -> None:
    async with a_coexist_node(node=MIXED) as node:
        amounts = {SMALL: "1", "nvidia.com/mig-3g.40gb": "0", "nvidia.com/gpu": "1"}
        status = {"capacity": amounts, "allocatable": amounts}
        await node.lab.client.patch(NODES, "n1", MergePatch({"status": status}), subresource="status")

        def usable() -> dict[str, int]:
            entries = node.replica.ledger.entries(N1)
            kinds = [entry.gpu.kind for entry in entries if not entry.gpu.unusable]
            return {kind: kinds.count(kind) for kind in kinds}

        await eventually(lambda: usable() == {"": 1, "1g.10gb": 1})


async def test_a_pod_that_carrel_has_not_placed_leaves_one_slice_less_of_its_profile() -> None:
    async with a_coexist_node(node=MIXED) as node:
        container = {"name": "main", "image": "work", "resources": {"limits": {SMALL: "1"}}}
        spec = {"nodeName": "n1", "schedulerName": "another-scheduler", "containers": [container]}
        old = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old"}, "spec": spec}
        await node.lab.client.create(PODS, old, "lab")
        await node.kubelet.work()
        await node.kubelet.report_users()
        await node.catch_up()
        await eventually(lambda: [name for name, pods in holders(node).items() if pods] == ["0:1"])
        await node.run_pod("new", limits={SMALL: "1"})
        late = await node.lab.pod("late", limits={SMALL: "1"})
        assert isinstance(await node.bind(late), Refusal)
        await node.run_pod("whole", limits={"nvidia.com/gpu": "1"})
