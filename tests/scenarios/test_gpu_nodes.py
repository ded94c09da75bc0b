"""A GPU that two nodes report belongs to the one that had it first; an agent that lies takes nothing from others."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations

import msgspec
import pytest

from carrel.cluster.record.cluster_ledger import ClusterLedger
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.state import ClusterState
from carrel.dialects import gpuclaim
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES, GpuNodeStatus
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.objects.kinds import NodeMetadata, NodeObject
from carrel.kubernetes.objects.resources import NODES
from carrel.kubernetes.store import key_of
from carrel.ledger.gpus import Node
from carrel.ledger.shares import Share
from tests.kit.eventually import eventually
from tests.kit.gpus import a_gpu, a_node, holder
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.reviews import a_state

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-06-01T00:00:00Z"
HONEST = a_node("honest", gpus=1)
LIAR = Node(NodeName("liar"), (replace(a_gpu("honest", 0), node=NodeName("liar")),))
"""Reports the GPU of the other."""
NOTHING = Node(NodeName("honest"), ())
TAKEN = "node honest reports the same GPU, GPU-honest-0, and had it first"


def status(node: Node, created: str = OLD) -> GpuNodeStatus:
    body = gpuclaim.node_status(node, {}, NOW)
    return msgspec.convert({**body, "metadata": {**body["metadata"], "creationTimestamp": created}}, GpuNodeStatus)


def node_object(name: str) -> NodeObject:
    return NodeObject(metadata=NodeMetadata(name=NodeName(name), uid=name))


def add_node(state: ClusterState, name: str) -> None:
    """As the watch does it: the store has it first."""
    state.nodes.store.put(node_object(name))
    state.cluster_ledger.on_node(None, node_object(name))


def delete_node(state: ClusterState, name: str) -> None:
    state.nodes.store.drop(key_of(node_object(name)))
    state.cluster_ledger.on_node(node_object(name), None)


def shown(ledger: ClusterLedger) -> dict[str, dict[str, str]]:
    """Node → UUID → why it is set aside."""
    return {
        name: {entry.gpu.uuid: entry.gpu.unusable for entry in ledger.ledger.entries(name)}
        for name in ledger.ledger.nodes
    }


HONEST_KEEPS_IT = {"honest": {"GPU-honest-0": ""}, "liar": {"liar/0": TAKEN}}


@pytest.mark.parametrize("created", [OLD, YOUNG])
def test_the_first_report_keeps_the_gpu_and_its_holders(created: str) -> None:
    ledger = a_state().cluster_ledger
    ledger.on_node_status(None, status(HONEST))
    share = Share(holder("a"), GpuUuid("GPU-honest-0"), None)
    ledger.lease_written(
        KnownLease("gpu-honest-0", "u", "5", LeaseRecord(NodeName("honest"), 0, GpuUuid("GPU-honest-0"), (share,)))
    )

    ledger.on_node_status(None, status(LIAR, created))

    assert shown(ledger) == HONEST_KEEPS_IT
    assert [entry.free for entry in ledger.ledger.entries(NodeName("honest"))] == [0]
    assert [entry.shares for entry in ledger.ledger.entries(NodeName("liar"))] == [{}]
    ledger.ledger.audit()


def test_an_older_report_that_claims_the_gpu_later_does_not_get_it() -> None:
    ledger = a_state().cluster_ledger
    ledger.on_node_status(None, status(Node(NodeName("liar"), ()), OLD))
    ledger.on_node_status(None, status(HONEST, YOUNG))

    ledger.on_node_status(status(Node(NodeName("liar"), ()), OLD), status(LIAR, OLD))

    assert shown(ledger) == HONEST_KEEPS_IT


@pytest.mark.parametrize("gone", ["the report no longer names it", "the report is gone", "the Node is gone"])
def test_a_gpu_that_was_moved_is_accepted_once_the_old_machine_lets_it_go(gone: str) -> None:
    state = a_state()
    ledger = state.cluster_ledger
    for name, node in (("honest", HONEST), ("liar", LIAR)):
        add_node(state, name)
        ledger.on_node_status(None, status(node))
    assert shown(ledger) == HONEST_KEEPS_IT

    if gone == "the report no longer names it":
        ledger.on_node_status(status(HONEST), status(NOTHING))
    elif gone == "the report is gone":
        ledger.on_node_status(status(HONEST), None)
    else:
        delete_node(state, "honest")

    assert shown(ledger)["liar"] == {"GPU-honest-0": ""}
    if gone == "the Node is gone":
        assert shown(ledger)["honest"] == {"honest/0": "node liar reports the same GPU, GPU-honest-0, and had it first"}
    ledger.ledger.audit()


@pytest.mark.parametrize("order", list(permutations(["honest", "liar", "nodes", "lease"])), ids=" ".join)
@pytest.mark.parametrize("evidence", ["the Lease", "the age of the reports"])
def test_after_a_restart_the_order_in_which_things_are_read_does_not_matter(
    order: tuple[str, ...], evidence: str
) -> None:
    state = a_state(is_read=False)
    ledger, is_leased = state.cluster_ledger, evidence == "the Lease"
    share = Share(holder("a"), GpuUuid("GPU-honest-0"), None)
    for what in order:
        if what == "honest":
            ledger.on_node_status(None, status(HONEST, YOUNG if is_leased else OLD))
        elif what == "liar":
            ledger.on_node_status(None, status(LIAR, OLD if is_leased else YOUNG))
        elif what == "nodes":
            add_node(state, "liar")
            add_node(state, "honest")
        elif is_leased:
            record = LeaseRecord(NodeName("honest"), 0, GpuUuid("GPU-honest-0"), (share,))
            ledger.lease_written(KnownLease("gpu-honest-0", "u", "5", record))

    assert shown(ledger) == HONEST_KEEPS_IT
    ledger.ledger.audit()


def test_no_agent_can_report_a_gpu_under_the_name_of_another_ones_place() -> None:
    ledger = a_state().cluster_ledger
    ledger.on_node_status(None, status(Node(NodeName("liar"), (replace(LIAR.gpus[0], uuid=GpuUuid("honest/0")),))))

    node = ledger.ledger.node(NodeName("liar"))
    assert node is not None and "not the place of another GPU" in node.unusable


async def test_a_replica_that_starts_later_agrees_and_a_deleted_node_lets_its_gpu_go() -> None:
    async with a_lab([HONEST, Node(NodeName("liar"), ())]) as lab, lab.replica() as first:
        await _claim(lab)
        await _shows(first, HONEST_KEEPS_IT)
        async with lab.replica() as second:
            await _shows(second, HONEST_KEEPS_IT)
            await lab.client.delete(NODES, "honest")
            for ledger in (first.cluster_ledger, second.cluster_ledger):
                await eventually(lambda ledger=ledger: shown(ledger)["liar"] == {"GPU-honest-0": ""})  # type: ignore[misc] # bound now


async def _claim(lab: Lab) -> None:
    body = gpuclaim.node_status(LIAR, {}, lab.clock.now)
    there = await lab.client.get(GPU_NODE_STATUSES, "liar")
    await lab.client.update(GPU_NODE_STATUSES, {**there, "status": body["status"]}, subresource="status")


async def _shows(replica: Replica, wanted: dict[str, dict[str, str]]) -> None:
    await eventually(lambda: shown(replica.cluster_ledger) == wanted, "the honest node keeps its GPU")
