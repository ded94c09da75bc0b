"""What the kubelet handed over is compared with what was promised; a difference is told, and the cards set aside."""

from typing import Any

import pytest

from carrel.ports.cluster import EVERYTHING
from carrel.ports.node import HandedOver
from carrel.protocols.kubelet import Inventory
from carrel.protocols.kubernetes.resources import EVENTS, PODS
from carrel.protocols.kubernetes.shapes import Pod
from carrel.usecases.compare import Comparison, Findings, reads_its_cards
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
INVENTORY = Inventory(a_node("n1").gpus)
OF_CARD_0 = tuple(device.id for device in INVENTORY.memory_devices()[:8138])
OWN_CARDS = "metadata.annotations['carrel.dev/devices']"
READS = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": OWN_CARDS}}}


async def a_pod(lab: Lab, name: str, promised: str, env: list[dict[str, Any]] | None = None) -> Pod:
    notes = {"carrel.dev/devices": promised} if promised else {}
    container = {"name": "main", "image": "work", "env": env or [], "resources": {"limits": {MEM: "8138"}}}
    await lab.pod(name, annotations=notes, containers=[container])
    return next(pod for pod in (await lab.client.list(PODS, EVERYTHING)).items if pod.metadata.name == name)


async def compare(lab: Lab, pods: list[Pod], *rows: HandedOver, kubelet_chooses: bool = False) -> Findings:
    comparison = Comparison(lab.client, lab.clock)
    findings = await comparison.compare(pods, rows, INVENTORY, kubelet_chooses=kubelet_chooses)
    for _ in range(2):
        await comparison.tell(findings.mismatches)
    return findings


@pytest.mark.parametrize(
    ("promised", "env", "resource", "devices", "words"),
    [
        pytest.param("GPU-n1-0", [], MEM, OF_CARD_0, "", id="the promised card"),
        pytest.param(
            "GPU-n1-1",
            [],
            MEM,
            OF_CARD_0,
            "which was promised GPU-n1-1",
            id="another card",
        ),
        pytest.param("GPU-n1-1", [READS], MEM, OF_CARD_0, "", id="it reads its card from its annotation"),
        pytest.param("", [], MEM, OF_CARD_0, "which was promised no card", id="a card that nobody promised"),
        pytest.param("", [READS], WHOLE, ("GPU-n1-0",), "which was promised no card", id="no annotation"),
        pytest.param("GPU-n1-1", [], WHOLE, ("GPU-n1-0",), "which was promised GPU-n1-1", id="another whole card"),
        pytest.param("GPU-n1-1", [], "example.com/fpga", ("GPU-n1-0",), "", id="something else than a card"),
        pytest.param("GPU-n1-1", [], MEM, ("gone0",), "", id="devices from before the unit was changed"),
    ],
)
async def test_a_difference_is_found_told_once_and_sets_the_cards_aside(
    promised: str, env: list[dict[str, Any]], resource: str, devices: tuple[str, ...], words: str
) -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", promised, env)
        findings = await compare(lab, [pod], HandedOver("lab", "a", "main", resource, devices))
        events = (await lab.client.list(EVENTS, EVERYTHING)).items

    if not words:
        assert (findings.mismatches, findings.set_aside(), events) == ((), {}, [])
        return
    said = f"the kubelet gave GPU-n1-0 to container main of lab/a, {words}"
    assert set(findings.set_aside().values()) == {said}
    assert set(findings.set_aside()) == {"GPU-n1-0", *([promised] if promised else [])}
    assert [(event.reason, event.message, event.type) for event in events] == [
        ("OtherGPUHandedOver", f"{said}; delete the pod", "Warning")
    ]


async def test_where_the_kubelet_chooses_it_cannot_choose_wrong() -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", "")
        row = HandedOver("lab", "a", "main", WHOLE, ("GPU-n1-1",))
        findings = await compare(lab, [pod], row, kubelet_chooses=True)

    assert findings.mismatches == ()
    assert findings.in_use_by == {"GPU-n1-0": [], "GPU-n1-1": [pod.metadata.uid]}


async def test_a_pod_that_nobody_knows_is_nobodys_mismatch() -> None:
    async with a_lab([]) as lab:
        findings = await compare(lab, [], HandedOver("lab", "gone", "main", WHOLE, ("GPU-n1-1",)))
    assert findings == Findings({"GPU-n1-0": [], "GPU-n1-1": []})


@pytest.mark.parametrize(
    ("container", "env", "reads"),
    [
        pytest.param("main", [READS], True, id="the pod's cards"),
        pytest.param(
            "main",
            [{**READS, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['devices.carrel.dev/main']"}}}],
            True,
            id="the container's own cards",
        ),
        pytest.param("main", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], False, id="a value of its own"),
        pytest.param("main", [{**READS, "name": "CUDA_VISIBLE_DEVICES"}], False, id="another variable"),
        pytest.param("main", None, False, id="no environment"),
        pytest.param("other", [READS], False, id="another container"),
    ],
)
def test_whether_a_container_reads_its_cards(container: str, env: list[dict[str, Any]] | None, reads: bool) -> None:
    assert reads_its_cards({"spec": {"containers": [{"name": "main", "env": env}]}}, container) is reads
