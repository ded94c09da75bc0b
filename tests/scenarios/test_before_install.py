"""`carrel doctor --before-install`: what would happen to the GPU pods of each namespace."""

from typing import Any

from carrel.cli.checks.finding import HopState, Installation
from carrel.cli.checks.table import BEFORE_INSTALL, findings
from carrel.kubernetes.objects.resources import NAMESPACES, PODS
from tests.kit.lab import a_lab

GPU = {"nvidia.com/gpu": "1"}
NAMESPACES_OF = {
    "services": {},
    "ada": {"owner": "ada@lab.example"},
    "monitoring": {"carrel.dev/exempt": "true"},
    "jhub": {},
    "cpu": {},
}


async def test_each_namespace_with_gpu_pods_is_listed_with_what_happens_and_nothing_is_changed() -> None:
    async with a_lab([]) as lab:
        for name, notes in NAMESPACES_OF.items():
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "annotations": notes}}
            await lab.client.create(NAMESPACES, body)
        for name in ("services", "ada", "monitoring"):
            await lab.pod("model", namespace=name, limits=GPU, scheduler="default-scheduler")
        await lab.pod("share", namespace="services", limits={"aliyun.com/gpu-mem": "4"}, scheduler="other")
        notes = {"hub.jupyter.org/username": "ada"}
        await lab.pod("jupyter-ada", namespace="jhub", limits=GPU, annotations=notes, scheduler="default-scheduler")
        await lab.pod("web", namespace="cpu", limits={})
        before = await lab.client.list(PODS)

        of = Installation(lab.client, "carrel", lambda: lab.clock.now)
        found = [(each.state, each.hop, each.text) for each in await findings(of, BEFORE_INSTALL)]
        assert (await lab.client.list(PODS)).items == before.items

    assert found[1:] == [
        (
            HopState.OK,
            "namespaces",
            "pods that run keep their GPUs until they end; below is what happens to new ones",
        ),
        (
            HopState.OK,
            "namespace ada",
            "1 pod with GPUs: of ada@lab.example; booked while a booking of theirs runs, else they may lose their GPU",
        ),
        (HopState.OK, "namespace jhub", "1 notebook with GPUs: their hub's users', if hubs.accounts names the hub"),
        (HopState.OK, "namespace monitoring", "1 pod with GPUs: keep their GPUs, because the namespace is exempt"),
        (
            HopState.WARN,
            "namespace services",
            "2 pods with GPUs: nobody's; no booking covers them, and they may lose their GPU to booked pods",
        ),
        (
            HopState.WARN,
            "namespace services",
            "1 pod with GPUs (share): refused, because they want the scheduler other",
        ),
    ]


async def test_a_cluster_without_gpu_pods_has_nothing_to_decide() -> None:
    async with a_lab([]) as lab:
        of: Any = Installation(lab.client, "carrel", lambda: lab.clock.now)
        found = await findings(of, BEFORE_INSTALL)
    assert [each.text for each in found][1:] == ["no pod asks for a GPU now: none is concerned"]
