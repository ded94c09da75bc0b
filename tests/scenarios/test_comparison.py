"""What the kubelet allocated is compared with the Leases; a mismatch is reported, and its GPUs are excluded."""

from typing import Any

import pytest

from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import EVERYTHING, DeleteOptions, Forbidden, MergePatch
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import EVENTS, LEASES, PODS
from carrel.kubernetes.transport import ApiRequest, ResponseLike
from carrel.node.comparison import AllocationMode, Comparison, ComparisonResult, reads_own_gpus
from carrel.node.device_names import DeviceInventory
from carrel.node.interfaces import AllocatedDevices
from carrel.node.lease_check import LeaseCheck
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
INVENTORY = DeviceInventory(a_node("n1").gpus)
OF_GPU_0 = tuple(device.id for device in INVENTORY.memory_devices()[:8138])
OWN_GPUS = "metadata.annotations['carrel.dev/devices']"
BY_PLUGIN, ON_NODE = AllocationMode(), AllocationMode(memory_on_node=True)
READS = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": OWN_GPUS}}}


async def a_pod(
    lab: Lab, name: str, promised: str, env: list[dict[str, Any]] | None = None, *, forged: bool = False
) -> Pod:
    """With a Lease for the GPU that it was promised, unless its annotation is forged."""
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


async def compare(
    lab: Lab, pods: list[Pod], *rows: AllocatedDevices, how: AllocationMode = BY_PLUGIN
) -> ComparisonResult:
    comparison = Comparison(lab.client, LeaseCheck(lab.client, N1, "carrel"), lab.clock)
    result = await comparison.compare(pods, rows, INVENTORY, how)
    for _ in range(2):
        await comparison.write_events(result.mismatches)
    return result


async def test_many_pods_that_see_all_gpus_cost_one_look_at_each_lease() -> None:
    async with a_lab([a_node("n1")]) as lab:
        pods = [await a_pod(lab, f"p{number}", "") for number in range(5)]
        comparison = Comparison(lab.client, LeaseCheck(lab.client, N1, "carrel"), lab.clock)
        before = leases_read(lab)

        result = await comparison.compare(pods, [], INVENTORY, ON_NODE)

        assert len(result.mismatches) == 5
        assert leases_read(lab) - before == 2, "n1 has two GPUs"


def leases_read(lab: Lab) -> int:
    return lab.client.calls.counts["GET", "leases", "200"]


@pytest.mark.parametrize(
    ("promised", "env", "resource", "devices", "words"),
    [
        pytest.param("GPU-n1-0", [], MEM, OF_GPU_0, "", id="the promised GPU"),
        pytest.param(
            "GPU-n1-1",
            [],
            MEM,
            OF_GPU_0,
            "which was promised GPU-n1-1",
            id="another GPU",
        ),
        pytest.param("GPU-n1-1", [READS], MEM, OF_GPU_0, "", id="it reads its GPU from its annotation"),
        pytest.param("", [], MEM, OF_GPU_0, "which was promised no GPU", id="a GPU without a promise"),
        pytest.param("", [READS], WHOLE, ("GPU-n1-0",), "which was promised no GPU", id="no annotation"),
        pytest.param("GPU-n1-1", [], WHOLE, ("GPU-n1-0",), "which was promised GPU-n1-1", id="another whole GPU"),
        pytest.param("GPU-n1-1", [], "example.com/fpga", ("GPU-n1-0",), "", id="something else than a GPU"),
        pytest.param("GPU-n1-1", [], MEM, ("gone0",), "", id="devices from before the unit was changed"),
    ],
)
async def test_a_mismatch_is_reported_once_and_its_gpus_are_excluded(
    promised: str, env: list[dict[str, Any]], resource: str, devices: tuple[str, ...], words: str
) -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", promised, env)
        result = await compare(lab, [pod], AllocatedDevices("lab", "a", "main", resource, devices))
        events = (await lab.client.list(EVENTS, EVERYTHING)).items

    if not words:
        assert (result.mismatches, result.excluded(), events) == ((), {}, [])
        return
    words = f"the kubelet gave GPU-n1-0 to container main of lab/a, {words}"
    assert set(result.excluded().values()) == {words}
    assert set(result.excluded()) == {"GPU-n1-0", *([promised] if promised else [])}
    cure = "delete the pod" if promised else "record it with `carrel adopt`, or delete the pod"
    assert [(event.reason, event.message, event.type) for event in events] == [
        ("OtherGPUHandedOver", f"{words}; {cure}", "Warning")
    ]


@pytest.mark.parametrize("env", [[], [READS]], ids=["it sees what the plugin answered", "it reads its annotation"])
async def test_an_annotation_without_a_lease_is_a_mismatch_even_if_it_names_the_allocated_gpu(
    env: list[dict[str, Any]],
) -> None:
    """A pod bypassed the scheduler, forged its annotation, and got the answer that was meant for an equal pod."""
    async with a_lab([]) as lab:
        honest = await a_pod(lab, "honest", "GPU-n1-0", [READS])
        forged = await a_pod(lab, "forged", "GPU-n1-0", env, forged=True)
        rows = [AllocatedDevices("lab", name, "main", MEM, OF_GPU_0) for name in ("honest", "forged")]
        result = await compare(lab, [honest, forged], *rows)

    words = "the kubelet gave GPU-n1-0 to container main of lab/forged, whose annotation names GPU-n1-0, but no Lease"
    assert result.excluded() == {"GPU-n1-0": words}


async def test_a_pod_that_only_claims_to_have_a_gpu_does_not_count_as_its_user() -> None:
    async with a_lab([]) as lab:
        pods = [await a_pod(lab, name, f"GPU-n1-{n}", forged=bool(n)) for n, name in enumerate(("honest", "forged"))]
        for pod in pods:
            status = MergePatch({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Running"}})
            await lab.client.patch(PODS, pod.metadata.name, status, "lab", subresource="status")
        running = list((await lab.client.list(PODS, EVERYTHING)).items)
        result = await compare(lab, running)
        beside_nvidias_plugin = await compare(lab, running, how=AllocationMode(kubelet_chooses=True))

    assert result.in_use_by == {"GPU-n1-0": [pods[0].metadata.uid], "GPU-n1-1": []}
    assert beside_nvidias_plugin.in_use_by == {"GPU-n1-0": [], "GPU-n1-1": []}, "only what the kubelet gave counts"


@pytest.mark.parametrize(
    ("gpu", "more", "is_promised"),
    [
        pytest.param("GPU-n1-0", {}, True, id="GPUs were renumbered at a reboot"),
        pytest.param(
            "n1/1", {"carrel.dev/reservation": '{"state":"held","gpu":"GPU-n1-0"}'}, True, id="its slot's GPU"
        ),
        pytest.param("n1/1", {"carrel.dev/reservation": '{"state":"held","gpu":"GPU-n1-1"}'}, False, id="another GPU"),
        pytest.param("n1/1", {}, False, id="a slot without a known GPU"),
        pytest.param("GPU-n1-0", {"carrel.dev/shares": "?"}, False, id="a Lease that cannot be read"),
    ],
)
async def test_the_leases_of_the_node_say_what_was_promised(gpu: str, more: dict[str, str], is_promised: bool) -> None:
    async with a_lab([]) as lab:
        await a_lease(lab, gpu, "uid-a", "1", **more)
        lease_check = LeaseCheck(lab.client, N1, "carrel")
        assert await lease_check.confirms(PodUid("uid-a"), [GpuUuid("GPU-n1-0")], INVENTORY.gpus) is is_promised
        assert not await lease_check.confirms(PodUid("uid-b"), [GpuUuid("GPU-n1-0")], INVENTORY.gpus)


async def test_what_could_not_be_compared_is_no_mismatch_but_is_reported() -> None:
    class NoLeases:
        """An API server that refuses to list Leases."""

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
        comparison = Comparison(lab.client, LeaseCheck(Client(NoLeases(lab)), N1, "carrel"), lab.clock)
        row = AllocatedDevices("lab", "a", "main", MEM, OF_GPU_0)
        result = await comparison.compare([pod], [row], INVENTORY, BY_PLUGIN)

    assert result.mismatches == ()
    assert "carrel-agent cannot list them" in result.unsure


async def test_where_the_kubelet_chooses_there_is_no_mismatch() -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", "")
        row = AllocatedDevices("lab", "a", "main", WHOLE, ("GPU-n1-1",))
        result = await compare(lab, [pod], row, how=AllocationMode(kubelet_chooses=True))

    assert result.mismatches == ()
    assert result.in_use_by == {"GPU-n1-0": [], "GPU-n1-1": [pod.metadata.uid]}


async def test_two_pods_with_one_gpu_by_the_kubelets_own_list_are_told_and_the_gpu_is_excluded() -> None:
    """Time-slicing was on when they started, and was switched off under them."""
    async with a_lab([]) as lab:
        pods = [await a_pod(lab, name, "") for name in ("a", "b")]
        rows = [
            AllocatedDevices("lab", name, "main", WHOLE, (f"GPU-n1-1{suffix}",))
            for name, suffix in (("a", "::0"), ("b", ""))
        ]
        result = await compare(lab, pods, *rows, how=AllocationMode(kubelet_chooses=True))
        events = (await lab.client.list(EVENTS, EVERYTHING)).items

    assert set(result.excluded()) == {"GPU-n1-1"}
    assert sorted(event.involved_object.name for event in events) == ["a", "b"]
    assert {event.reason for event in events} == {"GPUHandedOverTwice"}
    assert "the kubelet has given GPU-n1-1 to lab/a and to lab/b" in {each.words for each in result.mismatches}


async def test_a_pod_of_another_scheduler_is_no_mismatch_once_a_lease_records_it() -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", "")
        await a_lease(lab, "GPU-n1-0", pod.metadata.uid, "0")
        result = await compare(lab, [pod], AllocatedDevices("lab", "a", "main", WHOLE, ("GPU-n1-0",)))

    assert result.mismatches == ()
    assert result.in_use_by == {"GPU-n1-0": [pod.metadata.uid], "GPU-n1-1": []}


async def test_an_unknown_pod_is_no_mismatch() -> None:
    async with a_lab([]) as lab:
        result = await compare(lab, [], AllocatedDevices("lab", "gone", "main", WHOLE, ("GPU-n1-1",)))
    assert result == ComparisonResult({GpuUuid("GPU-n1-0"): [], GpuUuid("GPU-n1-1"): []})


@pytest.mark.parametrize(
    ("container", "env", "reads"),
    [
        pytest.param("main", [READS], True, id="the pod's GPUs"),
        pytest.param(
            "main",
            [{**READS, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['devices.carrel.dev/main']"}}}],
            True,
            id="the container's own GPUs",
        ),
        pytest.param("main", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], False, id="a value of its own"),
        pytest.param("main", [{**READS, "name": "CUDA_VISIBLE_DEVICES"}], False, id="another variable"),
        pytest.param("main", None, False, id="no environment"),
        pytest.param("other", [READS], False, id="another container"),
    ],
)
def test_whether_a_container_reads_its_gpus(container: str, env: list[dict[str, Any]] | None, reads: bool) -> None:
    assert reads_own_gpus({"spec": {"containers": [{"name": "main", "env": env}]}}, container) is reads


# --- where memory is a number on the Node, and the kubelet asks no plugin ---------------------------------------------

BOTH = {"GPU-n1-0", "GPU-n1-1"}


def literal(value: str) -> dict[str, Any]:
    return {"name": "NVIDIA_VISIBLE_DEVICES", "value": value}


@pytest.mark.parametrize(
    ("promised", "forged", "env", "aside"),
    [
        pytest.param("GPU-n1-0", False, [READS], set(), id="promised, and it reads what it was promised"),
        pytest.param("GPU-n1-0", False, [literal("0")], set(), id="promised, and it names just that GPU"),
        pytest.param("GPU-n1-0", False, [], {"GPU-n1-1"}, id="promised, but its image may show it all GPUs"),
        pytest.param("GPU-n1-0", False, [literal("all")], {"GPU-n1-1"}, id="promised one, and it takes all"),
        pytest.param("GPU-n1-0", True, [READS], {"GPU-n1-0"}, id="it forged its annotation"),
        pytest.param("", True, [READS], set(), id="its annotation is empty, and it sees none"),
        pytest.param("", True, [literal("GPU-n1-1")], {"GPU-n1-1"}, id="it names a GPU by its UUID"),
        pytest.param("", True, [literal("1, 0")], BOTH, id="it names GPUs by their indices"),
        pytest.param("", True, [literal("void")], set(), id="it wants no GPU"),
        pytest.param("", True, [literal("GPU-of-another-node")], set(), id="a GPU that the node does not have"),
        pytest.param("", True, [literal("MIG-1/2")], BOTH, id="a value that only the runtime understands"),
        pytest.param("", True, [literal("void"), literal("all")], BOTH, id="the last of two variables counts"),
        pytest.param("", True, [literal("$(OTHER)")], BOTH, id="a value made of others"),
        pytest.param("", True, [], BOTH, id="its image may name any GPU"),
    ],
)
async def test_gpus_that_a_pod_sees_without_a_lease_are_excluded(
    promised: str, forged: bool, env: list[dict[str, Any]], aside: set[str]
) -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", promised, env, forged=forged)
        result = await compare(lab, [pod], how=ON_NODE)
        events = (await lab.client.list(EVENTS, EVERYTHING)).items

    assert set(result.excluded()) == aside
    assert [event.reason for event in events] == (["GPUNotPromised"] if aside else [])
    if aside:
        had = "is promised GPU-n1-0 only" if promised and not forged else "is promised no GPU by any Lease"
        words = f"lab/a holds aliyun.com/gpu-mem, {had}, and can see {', '.join(sorted(aside))}"
        assert set(result.excluded().values()) == {words}
        assert events[0].message.startswith(f"{words}; delete the pod")


async def test_removing_a_forged_annotation_later_hides_nothing() -> None:
    async with a_lab([]) as lab:
        forged = await a_pod(lab, "a", "GPU-n1-1", [READS], forged=True)
        comparison = Comparison(lab.client, LeaseCheck(lab.client, N1, "carrel"), lab.clock)
        await comparison.compare([forged], (), INVENTORY, ON_NODE)
        off = MergePatch({"metadata": {"annotations": {"carrel.dev/devices": None}}})
        await lab.client.patch(PODS, "a", off, "lab")
        bare = list((await lab.client.list(PODS, EVERYTHING)).items)
        assert set((await comparison.compare(bare, (), INVENTORY, ON_NODE)).excluded()) == {"GPU-n1-1"}


async def test_manifests_are_not_read_where_a_plugin_advertises_memory() -> None:
    async with a_lab([]) as lab:
        pod = await a_pod(lab, "a", "", [literal("all")], forged=True)
        assert (await compare(lab, [pod])).mismatches == ()


async def test_no_gpu_is_excluded_for_a_pod_that_has_ended_or_holds_no_memory() -> None:
    async with a_lab([]) as lab:
        ended = await a_pod(lab, "a", "", [literal("all")], forged=True)
        status = MergePatch({"metadata": {"uid": ended.metadata.uid}, "status": {"phase": "Succeeded"}})
        await lab.client.patch(PODS, "a", status, "lab", subresource="status")
        await lab.pod("b", containers=[{"name": "main", "image": "work", "env": [literal("all")]}])
        pods = list((await lab.client.list(PODS, EVERYTHING)).items)
        assert (await compare(lab, pods, how=ON_NODE)).mismatches == ()


async def test_a_pod_is_not_judged_by_the_manifest_of_an_older_one_of_its_name() -> None:
    async with a_lab([]) as lab:
        old = await a_pod(lab, "a", "", [literal("all")], forged=True)
        await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
        await a_pod(lab, "a", "", [literal("void")], forged=True)
        assert (await compare(lab, [old], how=ON_NODE)).mismatches == ()
