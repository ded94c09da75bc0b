"""What the kubelet handed over is compared with what was promised; a difference is told, and the cards set aside."""

from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import EVERYTHING, DeleteOptions, Forbidden, MergePatch
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import EVENTS, LEASES, PODS
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from carrel.node.comparison import Comparison, Findings, HowOffered, reads_its_cards
from carrel.node.device_names import Inventory
from carrel.node.interfaces import HandedOver
from carrel.node.promises import Promises
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
INVENTORY = Inventory(a_node("n1").gpus)
OF_CARD_0 = tuple(device.id for device in INVENTORY.memory_devices()[:8138])
OWN_CARDS = "metadata.annotations['carrel.dev/devices']"
BY_PLUGIN, ON_NODE = HowOffered(), HowOffered(on_node=True)
READS = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": OWN_CARDS}}}


async def a_pod(
    lab: Lab, name: str, promised: str, env: list[dict[str, Any]] | None = None, *, forged: bool = False
) -> Pod:
    """With a Lease for the card that it was promised, unless its annotation is forged."""
    notes = {"carrel.dev/devices": promised} if promised else {}
    container = {"name": "main", "image": "work", "env": env or [], "resources": {"limits": {MEM: "8138"}}}
    made = await lab.pod(name, annotations=notes, containers=[container])
    if promised and not forged:
        await a_lease(lab, promised, made["metadata"]["uid"])
    return next(pod for pod in (await lab.client.list(PODS, EVERYTHING)).items if pod.metadata.name == name)


async def a_lease(lab: Lab, gpu: str, uid: str, index: str = "", **more: str) -> None:
    shares = f'{{"{uid}": {{"pod": "lab/a", "mib": 8138, "state": "assigned"}}}}'
    notes = {"carrel.dev/gpu": gpu, "carrel.dev/shares": shares, **more}
    metadata = {"name": f"gpu-n1-{index or gpu[-1]}", "annotations": notes}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    await lab.client.create(LEASES, lease, "carrel")


async def compare(lab: Lab, pods: list[Pod], *rows: HandedOver, how: HowOffered = BY_PLUGIN) -> Findings:
    comparison = Comparison(lab.client, Promises(lab.client, "n1", "carrel"), lab.clock)
    findings = await comparison.compare(pods, rows, INVENTORY, how)
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


@pytest.mark.parametrize("env", [[], [READS]], ids=["it sees what the plugin answered", "it reads its annotation"])
async def test_an_annotation_that_no_lease_confirms_is_told_even_if_it_names_what_was_handed_over(
    env: list[dict[str, Any]],
) -> None:
    """A pod went round the scheduler, wrote itself a promise, and got the answer that was meant for its twin."""
    async with a_lab([]) as lab:
        honest = await a_pod(lab, "honest", "GPU-n1-0", [READS])
        forged = await a_pod(lab, "forged", "GPU-n1-0", env, forged=True)
        rows = [HandedOver("lab", name, "main", MEM, OF_CARD_0) for name in ("honest", "forged")]
        findings = await compare(lab, [honest, forged], *rows)

    said = "the kubelet gave GPU-n1-0 to container main of lab/forged, whose annotation names GPU-n1-0, but no Lease"
    assert findings.set_aside() == {"GPU-n1-0": said}


async def test_a_pod_that_says_it_has_a_card_does_not_count_as_its_user() -> None:
    async with a_lab([]) as lab:
        pods = [await a_pod(lab, name, f"GPU-n1-{n}", forged=bool(n)) for n, name in enumerate(("honest", "forged"))]
        for pod in pods:
            status = MergePatch({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Running"}})
            await lab.client.patch(PODS, pod.metadata.name, status, "lab", subresource="status")
        running = list((await lab.client.list(PODS, EVERYTHING)).items)
        findings = await compare(lab, running)
        beside_nvidias_plugin = await compare(lab, running, how=HowOffered(kubelet_chooses=True))

    assert findings.in_use_by == {"GPU-n1-0": [pods[0].metadata.uid], "GPU-n1-1": []}
    assert beside_nvidias_plugin.in_use_by == {"GPU-n1-0": [], "GPU-n1-1": []}, "only what the kubelet gave counts"


@pytest.mark.parametrize(
    ("gpu", "more", "is_promised"),
    [
        pytest.param("GPU-n1-0", {}, True, id="cards were renumbered at a reboot"),
        pytest.param(
            "n1/1", {"carrel.dev/reservation": '{"state":"held","gpu":"GPU-n1-0"}'}, True, id="its slot's card"
        ),
        pytest.param("n1/1", {"carrel.dev/reservation": '{"state":"held","gpu":"GPU-n1-1"}'}, False, id="another card"),
        pytest.param("n1/1", {}, False, id="a slot without a known card"),
        pytest.param("GPU-n1-0", {"carrel.dev/shares": "?"}, False, id="a Lease that cannot be read"),
    ],
)
async def test_the_leases_of_the_node_say_what_was_promised(gpu: str, more: dict[str, str], is_promised: bool) -> None:
    async with a_lab([]) as lab:
        await a_lease(lab, gpu, "uid-a", "1", **more)
        promises = Promises(lab.client, "n1", "carrel")
        assert await promises.are_made("uid-a", ["GPU-n1-0"], INVENTORY.gpus) is is_promised
        assert not await promises.are_made("uid-b", ["GPU-n1-0"], INVENTORY.gpus)


async def test_what_could_not_be_compared_is_no_difference_but_said() -> None:
    class NoLeases:
        """An API server that shows Leases to nobody."""

        def __init__(self, lab: Lab) -> None:
            self._lab = lab

        async def send(self, request: ApiRequest) -> ResponseLike:
            if "/leases" in request.path:
                raise Forbidden(403, "Forbidden", "leases is forbidden: carrel-agent cannot list them")
            return await self._lab.api.send(request)

        async def aclose(self) -> None:
            """The API belongs to the test."""

    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", "GPU-n1-0")
        comparison = Comparison(lab.client, Promises(Client(NoLeases(lab)), "n1", "carrel"), lab.clock)
        row = HandedOver("lab", "a", "main", MEM, OF_CARD_0)
        findings = await comparison.compare([pod], [row], INVENTORY, BY_PLUGIN)

    assert findings.mismatches == ()
    assert "carrel-agent cannot list them" in findings.unsure


async def test_where_the_kubelet_chooses_it_cannot_choose_wrong() -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", "")
        row = HandedOver("lab", "a", "main", WHOLE, ("GPU-n1-1",))
        findings = await compare(lab, [pod], row, how=HowOffered(kubelet_chooses=True))

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


# --- where memory is a number on the Node, and nobody asks who gets it -----------------------------------------------

BOTH = {"GPU-n1-0", "GPU-n1-1"}


def literal(value: str) -> dict[str, Any]:
    return {"name": "NVIDIA_VISIBLE_DEVICES", "value": value}


@pytest.mark.parametrize(
    ("promised", "forged", "env", "aside"),
    [
        pytest.param("GPU-n1-0", False, [READS], set(), id="promised, and it reads what it was promised"),
        pytest.param("GPU-n1-0", False, [literal("0")], set(), id="promised, and it names just that card"),
        pytest.param("GPU-n1-0", False, [], {"GPU-n1-1"}, id="promised, but its image may show it all cards"),
        pytest.param("GPU-n1-0", False, [literal("all")], {"GPU-n1-1"}, id="promised one, and it takes all"),
        pytest.param("GPU-n1-0", True, [READS], {"GPU-n1-0"}, id="it wrote itself a promise"),
        pytest.param("", True, [READS], set(), id="it was told of no card, and sees none"),
        pytest.param("", True, [literal("GPU-n1-1")], {"GPU-n1-1"}, id="it names a card by its UUID"),
        pytest.param("", True, [literal("1, 0")], BOTH, id="it names cards by their indices"),
        pytest.param("", True, [literal("void")], set(), id="it wants no card"),
        pytest.param("", True, [literal("GPU-of-another-node")], set(), id="a card that the node does not have"),
        pytest.param("", True, [literal("MIG-1/2")], BOTH, id="a word that only the runtime knows"),
        pytest.param("", True, [literal("void"), literal("all")], BOTH, id="the last of two counts"),
        pytest.param("", True, [literal("$(OTHER)")], BOTH, id="a value made of others"),
        pytest.param("", True, [], BOTH, id="nobody knows what its image says"),
    ],
)
async def test_cards_that_a_holder_of_memory_sees_and_is_not_promised_are_set_aside(
    promised: str, forged: bool, env: list[dict[str, Any]], aside: set[str]
) -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", promised, env, forged=forged)
        findings = await compare(lab, [pod], how=ON_NODE)
        events = (await lab.client.list(EVENTS, EVERYTHING)).items

    assert set(findings.set_aside()) == aside
    assert [event.reason for event in events] == (["GPUNotPromised"] if aside else [])
    if aside:
        had = "is promised GPU-n1-0 only" if promised and not forged else "is promised no card by any Lease"
        said = f"lab/a holds aliyun.com/gpu-mem, {had}, and can see {', '.join(sorted(aside))}"
        assert set(findings.set_aside().values()) == {said}
        assert events[0].message.startswith(f"{said}; delete the pod")


async def test_who_takes_a_forged_annotation_off_again_hides_nothing() -> None:
    async with a_lab([]) as lab:
        forged = await a_pod(lab, "a", "GPU-n1-1", [READS], forged=True)
        comparison = Comparison(lab.client, Promises(lab.client, "n1", "carrel"), lab.clock)
        await comparison.compare([forged], (), INVENTORY, ON_NODE)
        off = MergePatch({"metadata": {"annotations": {"carrel.dev/devices": None}}})
        await lab.client.patch(PODS, "a", off, "lab")
        bare = list((await lab.client.list(PODS, EVERYTHING)).items)
        assert set((await comparison.compare(bare, (), INVENTORY, ON_NODE)).set_aside()) == {"GPU-n1-1"}


async def test_where_a_plugin_is_asked_nobody_looks_at_manifests() -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", "", [literal("all")], forged=True)
        assert (await compare(lab, [pod])).mismatches == ()


async def test_a_pod_that_has_ended_or_holds_no_memory_sets_nothing_aside() -> None:
    async with a_lab([]) as lab:
        ended = await a_pod(lab, "a", "", [literal("all")], forged=True)
        status = MergePatch({"metadata": {"uid": ended.metadata.uid}, "status": {"phase": "Succeeded"}})
        await lab.client.patch(PODS, "a", status, "lab", subresource="status")
        await lab.pod("b", containers=[{"name": "main", "image": "work", "env": [literal("all")]}])
        pods = list((await lab.client.list(PODS, EVERYTHING)).items)
        assert (await compare(lab, pods, how=ON_NODE)).mismatches == ()


async def test_a_pod_that_was_made_again_is_not_judged_by_the_manifest_of_its_namesake() -> None:
    async with a_lab([]) as lab:
        old = await a_pod(lab, "a", "", [literal("all")], forged=True)
        await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
        await a_pod(lab, "a", "", [literal("void")], forged=True)
        assert (await compare(lab, [old], how=ON_NODE)).mismatches == ()
