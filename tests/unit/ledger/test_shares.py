"""How a share counts."""

from fractions import Fraction

import pytest

from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.shares import Holder, Share, part_of


@pytest.mark.parametrize(
    ("memory", "part"),
    [
        pytest.param(None, Fraction(1), id="a whole GPU is one GPU"),
        pytest.param(4069, Fraction(1, 4), id="memory counts as its part"),
        pytest.param(16276, Fraction(1), id="all of the memory is one GPU"),
    ],
)
def test_a_share_counts_as_its_part_of_the_gpu(memory: int | None, part: Fraction) -> None:
    gpu = Gpu("GPU-0", "n1", 0, "T4", MiB(16276))
    share = Share(Holder("uid"), gpu.uuid, None if memory is None else MiB(memory))
    assert part_of(share, gpu) == part


def test_of_a_gpu_of_unknown_size_every_share_counts_as_the_whole() -> None:
    assert part_of(Share(Holder("uid"), "GPU-0", MiB(1)), Gpu("GPU-0", "n1", 0, "", MiB(0))) == 1
