"""GpuClaim, GpuNodeStatus and the Leases of GPUs."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest

from carrel.dialects import gpu_lease, gpuclaim
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpuclaim import ClaimPhase
from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.ledger.gpus import Gpu, MiB, Node, total_of
from carrel.ledger.requests import WHOLE, GpuPolicy, Memory, Portion, Request, Topology, TopologyMode
from carrel.ledger.shares import Holder, Share
from carrel.parsing import Malformed
from tests.kit.gpus import N1, divided_gpu
from tests.kit.objects import claim, gpu_node_status

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("spec", "request_"),
    [
        pytest.param({"devices": {"count": 2}}, Request(2, WHOLE), id="two whole GPUs"),
        pytest.param(
            {"devices": {"count": 2, "policy": "contiguous"}},
            Request(2, WHOLE, policy=GpuPolicy.CONTIGUOUS),
            id="contiguous",
        ),
        pytest.param(
            {"devices": {"count": 2, "policy": "spread"}}, Request(2, WHOLE, policy=GpuPolicy.SPREAD), id="spread"
        ),
        pytest.param(
            {"devices": {"count": 1, "policy": "preferIds", "preferIds": [3, 1]}},
            Request(1, WHOLE, policy=GpuPolicy.PREFER_IDS, prefer_ids=(3, 1)),
            id="preferred ids in their order",
        ),
        pytest.param({"devices": {"count": 1, "exclusivity": "Exclusive"}}, Request(1, WHOLE), id="exclusive"),
        pytest.param(
            {"devices": {"count": 1, "exclusivity": "Shared"}},
            Request(1, Portion(Fraction(1, 4))),
            id="a shared quarter",
        ),
        pytest.param(
            {"devices": {"count": 2, "exclusivity": "Shared", "memoryMiB": 8138}},
            Request(2, Memory(MiB(8138))),
            id="2 GPUs, 8138 MiB on each",
        ),
        pytest.param(
            {"devices": {"count": 4}, "topology": {"mode": "Required", "minBandwidthGBps": 600}},
            Request(4, WHOLE, topology=Topology(TopologyMode.REQUIRED, 600)),
            id="one island of fast links",
        ),
        pytest.param(
            {"devices": {"count": 1}, "topology": {"mode": "Ignore"}},
            Request(1, WHOLE, topology=Topology(TopologyMode.IGNORE)),
            id="topology ignored",
        ),
        pytest.param(
            {"devices": {"count": 1}, "selector": {"matchLabels": {"zone": "a"}}},
            Request(1, WHOLE, node_labels=frozenset({("zone", "a")})),
            id="nodes by label",
        ),
    ],
)
def test_a_claim_is_a_request(spec: dict[str, Any], request_: Request) -> None:
    assert gpuclaim.request_of(claim(spec), shared_claims_per_gpu=4) == request_


def test_a_claim_for_mig_is_for_whole_slices_of_any_profile() -> None:
    request = gpuclaim.request_of(claim({"devices": {"count": 2, "exclusivity": "MIG"}}), 4)
    assert request == Request(2, WHOLE, slices="any")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param({}, "spec.devices.count is 0", id="no count"),
        pytest.param({"devices": {"count": -1}}, "spec.devices.count is -1", id="less than nothing"),
        pytest.param(
            {"devices": {"count": 1, "policy": "Spread"}}, "contiguous, spread, preferIds", id="a policy's case"
        ),
        pytest.param(
            {"devices": {"count": 1, "exclusivity": "shared"}}, "Exclusive, Shared or MIG", id="an exclusivity's case"
        ),
        pytest.param({"devices": {"count": 1, "preferIds": [0, -1]}}, r"preferIds\[1\] is -1", id="a negative id"),
        pytest.param({"devices": {"count": 1, "memoryMiB": 1}}, "memoryMiB is 1", id="memory of an exclusive claim"),
        pytest.param(
            {"devices": {"count": 1, "exclusivity": "Shared", "memoryMiB": 0}}, "memoryMiB is 0", id="no memory"
        ),
        pytest.param(
            {"devices": {"count": 1}, "topology": {"mode": "Must"}}, "Required, Preferred, Ignore", id="a mode"
        ),
        pytest.param(
            {"devices": {"count": 1}, "topology": {"minBandwidthGBps": -1}}, "minBandwidthGBps is -1", id="a bandwidth"
        ),
        pytest.param({"devices": {"count": 1}, "gangRef": "job", "gangSize": 0}, "gangSize is 0", id="an empty gang"),
    ],
)
def test_a_malformed_claim_is_named_with_its_field(spec: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Malformed, match=f"GpuClaim lab/my-gpu-request: .*{complaint}"):
        gpuclaim.request_of(claim(spec), shared_claims_per_gpu=4)


def test_the_status_of_a_claim_says_which_gpus_on_which_node() -> None:
    assert gpuclaim.claim_status(ClaimPhase.BOUND, NodeName("node-a"), [0, 1], generation=3) == {
        "phase": "Bound",
        "nodeName": "node-a",
        "gpuIds": [0, 1],
        "allocated": "node-a:0,1",
        "message": None,
        "observedGeneration": 3,
    }
    assert gpuclaim.claim_status(ClaimPhase.PENDING, message="no room")["allocated"] is None


def test_an_allocation_is_written_as_in_the_document_with_its_node() -> None:
    assert gpuclaim.write_allocated(NodeName("node-a"), [0, 1]) == {"gpu.scheduling/allocated": "node-a:0,1"}


@pytest.mark.parametrize(("node", "index"), [("node-a", 0), ("gpu-1", 15), ("rack-1.lab.example", 3)])
def test_the_lease_of_a_gpu_is_named_after_node_and_index(node: str, index: int) -> None:
    assert gpu_lease.lease_name(NodeName(node), index) == f"gpu-{node}-{index}"
    assert gpu_lease.read_lease_name(f"gpu-{node}-{index}") == (node, index)


@pytest.mark.parametrize(
    "name", ["", "gpu-", "gpu-0", "gpu--0", "node-a-0", "gpu-node-a", "gpu-node-a-01", "gpu-a-99999"]
)
def test_other_leases_are_not_taken_for_a_gpus(name: str) -> None:
    assert gpu_lease.read_lease_name(name) is None


@pytest.mark.parametrize(
    ("pod", "label"),
    [
        pytest.param("train", "train", id="a short name as it is"),
        pytest.param("a" * 62 + "-" + "b" * 30, "a" * 62, id="a long one without a dash at its end"),
        pytest.param("", None, id="no name is known"),
    ],
)
def test_a_pods_name_is_cut_to_the_length_of_a_label(pod: str, label: str | None) -> None:
    share = Share(Holder(PodUid("u1"), "lab", pod), GpuUuid("GPU-a"), None)
    labels = gpu_lease.write_lease(
        LeaseRecord(N1, 0, GpuUuid("GPU-a"), (share,)), "carrel", datetime(2026, 1, 1, tzinfo=UTC)
    )["metadata"]["labels"]
    assert labels == {"gpu.scheduling/managed": "true"} | ({"gpu.scheduling/pod": label} if label else {})


# --- nodes -----------------------------------------------------------------------------------------------------------

OF_A_PEER = {
    "metadata": {"name": "node-a"},
    "spec": {"nodeName": "node-a"},
    "status": {
        "total": 2,
        "devices": [
            {"id": 1, "island": "nvlink-group-0", "bandwidthGBps": 600, "health": "Unhealthy"},
            {"id": 0, "island": "nvlink-group-0", "bandwidthGBps": 600, "inUseBy": ["uid-1"]},
        ],
    },
}


def test_what_another_agent_does_not_say_comes_from_the_nodes_labels() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-RTX-A6000", "nvidia.com/gpu.memory": "49140"}
    node = gpuclaim.node_of(gpu_node_status(OF_A_PEER), labels)
    assert node == Node(
        NodeName("node-a"),
        (
            Gpu(GpuUuid("node-a/0"), NodeName("node-a"), 0, "NVIDIA-RTX-A6000", MiB(49140), "nvlink-group-0", 600),
            Gpu(
                GpuUuid("node-a/1"),
                NodeName("node-a"),
                1,
                "NVIDIA-RTX-A6000",
                MiB(49140),
                "nvlink-group-0",
                600,
                "its node reports it as Unhealthy",
            ),
        ),
        labels,
    )
    assert gpuclaim.heartbeat_of(gpu_node_status(OF_A_PEER)) is None


def test_a_gpu_of_unknown_size_can_only_be_had_whole() -> None:
    gpu = gpuclaim.node_of(gpu_node_status(OF_A_PEER), {}).gpus[0]
    assert WHOLE.on(gpu.memory) == gpu.memory
    assert Portion(Fraction(1, 2)).on(gpu.memory) > gpu.memory


def test_carrels_agent_writes_what_carrel_reads() -> None:
    node = Node(
        N1,
        (
            Gpu(GpuUuid("GPU-a"), N1, 0, "A100", MiB(81920), "nvlink-0", 600),
            Gpu(GpuUuid("GPU-b"), N1, 1, "T4", MiB(15360), unusable="XID 79"),
        ),
    )
    written = gpuclaim.node_status(node, {GpuUuid("GPU-a"): [PodUid("uid-1")]}, datetime(2025, 6, 1, 8, tzinfo=UTC))
    assert written == {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
        "metadata": {"name": "n1"},
        "spec": {"nodeName": "n1"},
        "status": {
            "total": 2,
            "devices": [
                {
                    "id": 0,
                    "inUseBy": ["uid-1"],
                    "health": "Healthy",
                    "bandwidthGBps": 600,
                    "island": "nvlink-0",
                    "uuid": "GPU-a",
                    "model": "A100",
                    "memoryMiB": 81920,
                },
                {
                    "id": 1,
                    "inUseBy": [],
                    "health": "Unhealthy",
                    "bandwidthGBps": 0,
                    "uuid": "GPU-b",
                    "model": "T4",
                    "memoryMiB": 15360,
                    "reason": "XID 79",
                },
            ],
            "heartbeat": "2025-06-01T08:00:00Z",
            "mode": "native",
        },
    }
    assert gpuclaim.node_of(gpu_node_status(written), {}) == node
    assert gpuclaim.heartbeat_of(gpu_node_status(written)) == datetime(2025, 6, 1, 8, tzinfo=UTC)


def test_a_mig_slice_is_written_as_it_is_read() -> None:
    node = Node(N1, divided_gpu(profiles=("1g.10gb", "1g.10gb.me")))
    written = gpuclaim.node_status(node, {}, datetime(2025, 6, 1, 8, tzinfo=UTC))

    assert written["status"]["devices"][1] == {
        "id": 1001,
        "inUseBy": [],
        "health": "Healthy",
        "bandwidthGBps": 0,
        "uuid": "MIG-n1-0-1",
        "model": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me",
        "memoryMiB": 10240,
        "mig": {"profile": "1g.10gb.me", "parent": "GPU-n1-0", "parentId": 0, "parentMemoryMiB": 81920},
    }
    assert gpuclaim.node_of(gpu_node_status(written), {}) == node


@pytest.mark.parametrize(
    ("profiles", "labels", "is_gpu"),
    [
        pytest.param(["1g.10gb"] * 7, {"nvidia.com/mig.strategy": "single"}, True, id="alike, on a node that says so"),
        pytest.param(["1g.10gb"] * 7, {"nvidia.com/mig.strategy": "mixed"}, False, id="alike, and offered by profile"),
        pytest.param(["1g.10gb"] * 7, {}, False, id="alike, and nothing is said"),
        pytest.param(["3g.40gb", "2g.20gb"], {"nvidia.com/mig.strategy": "single"}, False, id="of two profiles"),
    ],
)
def test_slices_are_advertised_as_gpus_where_their_node_says_so(
    profiles: list[str], labels: dict[str, str], is_gpu: bool
) -> None:
    written = gpuclaim.node_status(Node(N1, divided_gpu(profiles=profiles)), {}, datetime(2025, 6, 1, 8, tzinfo=UTC))

    gpus = gpuclaim.node_of(gpu_node_status(written), labels).gpus
    assert [gpu.slice.is_gpu for gpu in gpus if gpu.slice] == [is_gpu] * len(profiles)


@pytest.mark.parametrize(
    ("devices", "complaint"),
    [
        pytest.param([{"id": 0}, {"id": 0}], r"devices\[1\]\.id is 0; .*no other device", id="one id twice"),
        pytest.param([{"id": 0, "uuid": "GPU-a"}, {"id": 1, "uuid": "GPU-a"}], r"devices\[1\]", id="one uuid twice"),
        pytest.param([{"id": -1}], r"devices\[0\]\.id is -1", id="a negative id"),
        pytest.param([{"id": 0, "memoryMiB": -1}], r"devices\[0\]\.memoryMiB is -1", id="negative memory"),
        pytest.param([{"id": 0, "bandwidthGBps": -1}], r"bandwidthGBps is -1", id="negative bandwidth"),
        pytest.param([{"id": 0, "mig": {}}], r"mig\.profile is ''", id="a slice without a profile"),
        pytest.param([{"id": 0, "mig": {"profile": "1g"}}], r"mig\.profile is '1g'", id="a profile without memory"),
        pytest.param([{"id": 0, "mig": {"profile": "1g.5gb"}}], r"mig\.parent is ''", id="a slice of no GPU"),
        pytest.param(
            [{"id": 0, "mig": {"profile": "1g.5gb", "parent": "GPU-a", "parentId": -1}}],
            r"mig is \(-1, 0\)",
            id="a slice of a GPU with a negative id",
        ),
    ],
)
def test_a_malformed_node_status_is_named(devices: list[dict[str, Any]], complaint: str) -> None:
    status = gpu_node_status({"metadata": {"name": "n1"}, "status": {"devices": devices}})
    with pytest.raises(Malformed, match=f"GpuNodeStatus n1: status.*{complaint}"):
        gpuclaim.node_of(status, {})


def test_a_malformed_label_of_the_node_is_named() -> None:
    with pytest.raises(Malformed, match=r"node node-a: metadata\.labels\['nvidia\.com/gpu\.memory'\] is '0'"):
        gpuclaim.node_of(gpu_node_status(OF_A_PEER), {"nvidia.com/gpu.memory": "0"})


def reported(**fields: Any) -> Node:
    device = {"id": 0, "uuid": "GPU-a", "memoryMiB": 16276, **fields}
    status = {"metadata": {"name": "n1"}, "spec": {"nodeName": "n1"}, "status": {"devices": [device]}}
    return gpuclaim.node_of(gpu_node_status(status), {})


def test_what_pods_may_share_of_a_gpu_is_reported_and_read() -> None:
    node = reported(usableMiB=15826)
    assert (node.gpus[0].memory, total_of(node.gpus[0].memory)) == (15826, 16276)

    (device,) = gpuclaim.node_status(node, {}, NOON)["status"]["devices"]
    assert (device["memoryMiB"], device["usableMiB"]) == (16276, 15826)
    (device,) = gpuclaim.node_status(reported(), {}, NOON)["status"]["devices"]
    assert (device["memoryMiB"], "usableMiB" in device) == (16276, False)


@pytest.mark.parametrize("usable", [-1, 0, 16277])
def test_a_gpu_of_which_nothing_or_more_than_all_is_usable_is_named(usable: int) -> None:
    with pytest.raises(Malformed, match=r"devices\[0\].usableMiB"):
        reported(usableMiB=usable)
