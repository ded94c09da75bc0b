"""Reads the Alibaba GPU trace 2023 (`openb_*.csv`), as its files are: text in, nodes and pods out.

A GPU counts 1,000 milli there. The trace does not say how much memory a GPU has, so a GPU has 1,000 MiB here, and a
share of 470 milli is the portion 47/100 of it. `gpu_spec` names the models that will do, separated by `|`.
"""

from fractions import Fraction

from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import ANY_GPU, WHOLE, GpuSelector, Portion, Request
from carrel.parsing import Malformed
from carrel.simulation.rows import Row, csv_rows
from carrel.simulation.workload import SimulatedCluster, SimulatedPod

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
WHOLE_MILLI = 1000


def is_openb(text: str) -> bool:
    """By the first line: whether these are openb's pods."""
    first = text.partition("\n")[0].strip().split(",")
    return set(POD_COLUMNS) <= set(first)


def read_nodes(text: str, source: str) -> SimulatedCluster:
    """Only nodes with GPUs. Raises `Malformed` with the line and the reason."""
    nodes, machines, lines = [], {}, dict[str, int]()
    for row in csv_rows(text, source, NODE_COLUMNS):
        name, cards = row.name("sn", lines), row.number("gpu")
        if not cards:
            continue
        gpus = (Gpu(f"{name}/{index}", name, index, row.text("model"), MiB(WHOLE_MILLI)) for index in range(cards))
        nodes.append(Node(name, tuple(gpus)))
        machines[name] = MachineRoom(row.number("cpu_milli"), row.number("memory_mib"))
    if not nodes:
        raise Malformed(source, "the file", "no node with a GPU", "at least one")
    return SimulatedCluster(tuple(nodes), machines)


def read_pods(text: str, source: str) -> tuple[SimulatedPod, ...]:
    """Raises `Malformed` with the line and the reason."""
    pods, lines = [], dict[str, int]()
    for row in csv_rows(text, source, POD_COLUMNS):
        name = row.name("name", lines)
        machine = MachineRoom(row.number("cpu_milli"), row.number("memory_mib"))
        created = row.number("creation_time") if row.text("creation_time") else 0
        deleted = row.number("deletion_time") if row.text("deletion_time") else None
        if deleted is not None and deleted < created:
            raise row.wrong("deletion_time", f"a time after the creation at {created}")
        lasts = None if deleted is None else float(deleted - created)
        pods.append(SimulatedPod(name, _request(row), machine, "", float(created), lasts))
    if not pods:
        raise Malformed(source, "the file", "no pod", "at least one")
    return tuple(pods)


def _request(row: Row) -> Request | None:
    cards, milli = row.number("num_gpu"), row.number("gpu_milli")
    if not cards:
        return None
    if not 0 < milli <= WHOLE_MILLI:
        raise row.wrong("gpu_milli", "1 to 1000")
    models = tuple(sorted({each for each in row.text("gpu_spec").split("|") if each}))
    selector = GpuSelector(models) if models else ANY_GPU
    return Request(cards, WHOLE if milli == WHOLE_MILLI else Portion(Fraction(milli, WHOLE_MILLI)), selector=selector)
