"""Reads `--add`: GPUs that a cluster does not have yet, as a user writes them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.parsing import Malformed
from carrel.simulation.workload import SimulatedCluster

MOST_ADDED = 10_000
"""In all. The largest clusters that are simulated have about as many."""
MOST_MIB = 16 * 1024 * 1024
"""Of a GPU, as in a cluster's file."""
GPUS_OF_A_NODE = 8

_GROUP = re.compile(r"([0-9]{1,9})x([^:,]+):([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class AddedGpus:
    """So many GPUs of one kind."""

    count: int
    model: str
    memory: MiB

    def __str__(self) -> str:
        return f"{self.count}x{self.model}:{self.memory}"


def added_gpus(text: str) -> list[AddedGpus]:
    """`8xNVIDIA-A100-SXM4-80GB:81920,2xTesla-T4:16276`. Raises `Malformed`."""
    groups = [_group(part.strip()) for part in text.split(",")]
    if sum(group.count for group in groups) > MOST_ADDED:
        raise Malformed("--add", "the value", text, f"at most {MOST_ADDED:,} GPUs in all")
    return groups


def _group(text: str) -> AddedGpus:
    found = _GROUP.fullmatch(text)
    if found is None or not text.isprintable():
        expected = "COUNTxMODEL:MIB, as 8xNVIDIA-A100-SXM4-80GB:81920; several are joined by commas"
        raise Malformed("--add", "the value", text, expected)
    number, model, memory = int(found[1]), found[2].strip(), int(found[3])
    if not 1 <= number <= MOST_ADDED or not 1 <= memory <= MOST_MIB or not model:
        raise Malformed("--add", "the value", text, f"1 to {MOST_ADDED:,} GPUs of a model with 1 to {MOST_MIB:,} MiB")
    return AddedGpus(number, model, MiB(memory))


def with_more(cluster: SimulatedCluster, groups: Sequence[AddedGpus]) -> SimulatedCluster:
    """With more nodes of up to eight linked GPUs. Nothing is said about their CPU, labels and taints: they have enough,
    and every pod may run there."""
    taken = {node.name for node in cluster.nodes}
    names = (name for number in count() if (name := f"added-{number}") not in taken)
    nodes = []
    for group in groups:
        for first in range(0, group.count, GPUS_OF_A_NODE):
            name = next(names)
            indices = range(min(group.count - first, GPUS_OF_A_NODE))
            gpus = (Gpu(f"{name}/{index}", name, index, group.model, group.memory, "added") for index in indices)
            nodes.append(Node(name, tuple(gpus), cluster.labels_of_added))
    return replace(cluster, nodes=(*cluster.nodes, *nodes))


def unknown_models(cluster: SimulatedCluster, groups: Sequence[AddedGpus]) -> str:
    """A sentence about models that the cluster does not have, which may be a misspelling; empty: it has all."""
    known = sorted({gpu.model for node in cluster.nodes for gpu in node.gpus})
    unknown = sorted({group.model for group in groups} - set(known))
    if not unknown:
        return ""
    return f"New models: the cluster has no {' and no '.join(unknown)} yet. It has {', '.join(known)}."
