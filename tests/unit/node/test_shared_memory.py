"""How much memory of a GPU the agent says that pods may share."""

import pytest

from carrel.configuration.gpu_memory import Capacity
from carrel.ids import NodeName
from carrel.kubernetes.objects.kinds import NodeMetadata, NodeObject
from carrel.ledger.gpus import MiB, total_of
from carrel.node.interfaces import GpuDetails
from carrel.node.shared_memory import counts_all_memory, with_usable_memory
from tests.kit.gpus import a_gpu

GPUSHARE, OTHER = (
    NodeObject(metadata=NodeMetadata(name=NodeName("n1"), labels={"gpushare": word})) for word in ("true", "false")
)


@pytest.mark.parametrize(
    ("capacity", "node", "serves_gpushare", "counts_all"),
    [
        pytest.param(Capacity.AUTO, OTHER, False, False, id="by default, what the driver leaves"),
        pytest.param(Capacity.AUTO, None, False, False, id="also before the Node is known"),
        pytest.param(Capacity.AUTO, GPUSHARE, False, True, id="all of it where gpushare takes part"),
        pytest.param(Capacity.AUTO, OTHER, True, True, id="and where its plugin serves the node"),
        pytest.param(Capacity.TOTAL, OTHER, False, True, id="an admin wants all of it"),
        pytest.param(Capacity.USABLE, GPUSHARE, True, False, id="an admin wants what is left"),
    ],
)
def test_what_counts(capacity: Capacity, node: NodeObject | None, serves_gpushare: bool, counts_all: bool) -> None:
    assert counts_all_memory(capacity, node, serves_gpushare=serves_gpushare) is counts_all


@pytest.mark.parametrize(
    ("kept", "usable"),
    [
        pytest.param(450, 15_826, id="the driver keeps some"),
        pytest.param(0, 16_276, id="it keeps nothing, or does not say"),
        pytest.param(16_276, 16_276, id="it claims to keep all"),
        pytest.param(20_000, 16_276, id="it claims more than there is"),
    ],
)
def test_what_the_driver_keeps_is_taken_off(kept: int, usable: int) -> None:
    gpu = a_gpu("n1", 0, 16_276)
    (shared,) = with_usable_memory((gpu,), {gpu.uuid: GpuDetails(kept=MiB(kept))})

    assert (shared.memory, total_of(shared.memory)) == (usable, 16_276)
