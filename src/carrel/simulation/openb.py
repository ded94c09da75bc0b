"""Reads the Alibaba GPU trace 2023 (`openb_*.csv`), as its files are: text in, nodes and pods out.

A GPU counts 1,000 milli there. The trace does not say how much memory a GPU has, so a GPU has 1,000 MiB here, and a
share of 470 milli is the portion 47/100 of it. `gpu_spec` names the models that will do, separated by `|`.

Times are seconds. A pod that got its GPUs ran from `scheduled_time` to `deletion_time`, and runs as long here; one that
never got them is wanted as long as it waited there.
"""

from fractions import Fraction

from carrel.ids import NO_PERSON, NodeName, PodUid
from carrel.ledger.gpus import Gpu, MiB, Node, place_name
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import ANY_GPU, WHOLE, GpuSelector, Portion, Request
from carrel.parsing import Malformed
from carrel.simulation.trace import Row, csv_rows
from carrel.simulation.workload import SimulatedCluster, SimulatedPod

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
WHOLE_MILLI = 1000
MOST_GPUS_OF_A_NODE = 1024
"""No machine has more, also if each GPU is split into seven."""
MOST_SECONDS = 100 * 366 * 24 * 3600
"""Times beyond a hundred years are mistakes."""


def is_openb(text: str) -> bool:
    """By the first line: whether these are openb's pods."""
    return _columns(text) >= set(POD_COLUMNS)


def has_times(text: str) -> bool:
    """Some of the published lists say when pods came and went, others do not."""
    return _columns(text) >= {"creation_time", "deletion_time"}


def _columns(text: str) -> set[str]:
    return set(text.partition("\n")[0].strip().split(","))


def read_nodes(text: str, source: str) -> SimulatedCluster:
    """Only nodes with GPUs. Raises `Malformed` with the line and the reason."""
    nodes, machines, lines = [], {}, dict[str, int]()
    for row in csv_rows(text, source, NODE_COLUMNS):
        name, count = NodeName(row.name("sn", lines)), row.number("gpu")
        if not count:
            continue
        if count > MOST_GPUS_OF_A_NODE:
            raise row.wrong("gpu", f"at most {MOST_GPUS_OF_A_NODE}")
        gpus = (
            Gpu(place_name(name, index), name, index, row.text("model"), MiB(WHOLE_MILLI)) for index in range(count)
        )
        nodes.append(Node(name, tuple(gpus)))
        machines[name] = MachineRoom(row.number("cpu_milli"), row.number("memory_mib"))
    if not nodes:
        raise Malformed(source, "the file", "no node with a GPU", "at least one")
    return SimulatedCluster(tuple(nodes), machines)


def read_pods(text: str, source: str) -> tuple[SimulatedPod, ...]:
    """Raises `Malformed` with the line and the reason."""
    pods, lines = [], dict[str, int]()
    for row in csv_rows(text, source, POD_COLUMNS):
        name = PodUid(row.name("name", lines))
        machine = MachineRoom(row.number("cpu_milli"), row.number("memory_mib"))
        pods.append(SimulatedPod(name, _request(row), machine, NO_PERSON, *_times(row)))
    if not pods:
        raise Malformed(source, "the file", "no pod", "at least one")
    return tuple(pods)


def _times(row: Row) -> tuple[float, float | None]:
    """When it arrives, and how long it runs."""
    created = row.decimal("creation_time", most=MOST_SECONDS)
    if not row.text("deletion_time"):
        return created, None
    began = row.decimal("scheduled_time", created, most=MOST_SECONDS)
    deleted = row.decimal("deletion_time", most=MOST_SECONDS)
    if began < created:
        raise row.wrong("scheduled_time", f"a time after the creation at {created:g}")
    if deleted < began:
        raise row.wrong("deletion_time", f"a time after it began at {began:g}")
    return created, deleted - began


def _request(row: Row) -> Request | None:
    gpus, milli = row.number("num_gpu"), row.number("gpu_milli")
    if not gpus:
        return None
    if not 0 < milli <= WHOLE_MILLI:
        raise row.wrong("gpu_milli", "1 to 1000")
    models = tuple(sorted({each for each in row.text("gpu_spec").split("|") if each}))
    selector = GpuSelector(models) if models else ANY_GPU
    return Request(gpus, WHOLE if milli == WHOLE_MILLI else Portion(Fraction(milli, WHOLE_MILLI)), selector=selector)
