"""One plan for all members of a gang, on 5,000 nodes × 8 GPUs, or why there is none.

A plan is made once for all members, and takes less than 0.1 ms for each of them, shown by how it grows. A gang that
does not fit is refused after a number of steps (`ledger/gangs.py`): it must not take longer than the plan of one that
fits.
"""

from collections.abc import Iterator

from benchmarks.core import cluster
from benchmarks.measuring import Figure, cpu_seconds
from carrel.ids import PodUid
from carrel.ledger.gangs import GangPlan, plan_gang
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import WaitingPod
from carrel.ledger.requests import Gang, Memory, Request
from carrel.ledger.shares import Holder

GROWTH = (100, 300, 1_000)
KINDS = (1, 41)
TOO_FEW_NODES = 10
"""For a hundred members."""


def measure() -> Iterator[Figure]:
    for kinds in KINDS:
        for size in GROWTH:
            yield _plan(size, kinds, 5_000, fits=True)
            yield _plan(size, kinds, TOO_FEW_NODES * size // 100, fits=False)


def _plan(size: int, kinds: int, nodes: int, *, fits: bool) -> Figure:
    """Each kind asks for another amount, on one to four GPUs."""
    there = cluster()[:nodes]
    ledger, names = Ledger(there), tuple(node.name for node in there)
    asked = [Request(1 + kind % 4, Memory(MiB(50_000 - kind * 700))) for kind in range(kinds)]
    members = [
        WaitingPod(Holder(PodUid(f"uid-{number}"), "lab", f"m{number}"), asked[number % kinds], names)
        for number in range(size)
    ]
    gang = Gang("lab/training", size)
    assert isinstance(plan_gang(ledger, gang, members), GangPlan) is fits
    seconds = cpu_seconds(lambda: plan_gang(ledger, gang, members), runs=5)
    what = "plan" if fits else "refuse"
    return Figure(f"{what} a gang of {size:,} members of {kinds} kind{'s' * (kinds > 1)}", seconds * 1e3, "ms", 100.0)
