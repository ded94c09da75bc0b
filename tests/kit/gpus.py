"""Builders of nodes, GPUs and held memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from carrel.cluster_file import divided
from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.ledger.gpus import Gpu, MiB, MigSlice, Node
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.requests import WHOLE, Memory, Request
from carrel.ledger.shares import Holder, Share

A100 = "NVIDIA-A100-SXM4-80GB"
A6000 = "NVIDIA-RTX-A6000"
N1, N2, N3, N4, N5, N6, N7, N8, N9 = (NodeName(f"n{number}") for number in range(1, 10))
"""Nodes of most tests."""


def a_gpu(node: str, index: int, memory: int = 16276, **more: object) -> Gpu:
    fields: dict[str, object] = {"model": A6000, **more}
    return Gpu(uuid=GpuUuid(f"GPU-{node}-{index}"), node=NodeName(node), index=index, memory=MiB(memory), **fields)  # type: ignore[arg-type] # the builder passes fields through


def a_node(name: str, gpus: int = 2, memory: int = 16276, islands: str = "", **more: object) -> Node:
    """`islands="aabb"` puts GPUs 0 and 1 into island a, 2 and 3 into b; a dot is a GPU without a link."""
    letters = islands or "." * gpus
    found = tuple(
        a_gpu(name, index, memory, island="" if letter == "." else letter, **more)
        for index, letter in enumerate(letters)
    )
    return Node(NodeName(name), found)


def a_slice(profile: str = "1g.10gb", parent: str = "GPU-n1-0", parent_index: int = 0, **more: bool) -> MigSlice:
    return MigSlice(profile, GpuUuid(parent), parent_index, MiB(81920), **more)


def divided_gpu(node: str = "n1", index: int = 0, profiles: Sequence[str] = ("1g.10gb",) * 7) -> tuple[Gpu, ...]:
    """An A100 as seven slices, unless said otherwise; their UUIDs are `MIG-n1-0-3`."""
    whole_gpu = a_gpu(node, index, 81920, model=A100)
    found = divided(whole_gpu, profiles)
    return tuple(replace(gpu, uuid=GpuUuid(f"MIG-{node}-{index}-{at}")) for at, gpu in enumerate(found))


def holder(name: str) -> Holder:
    return Holder(PodUid(f"uid-{name}"), "lab", name)


def held(pod: str, node: str, index: int, memory: int | None) -> Share:
    return Share(holder(pod), GpuUuid(f"GPU-{node}-{index}"), None if memory is None else MiB(memory))


def a_ledger(*nodes: Node, held_memory: Mapping[str, Sequence[int]] | None = None) -> Ledger:
    """`held_memory={"n1": [16276, 0]}`: on n1, GPU 0 has 16276 MiB held by a pod, GPU 1 nothing."""
    shares = [
        held(f"tenant-{node}-{index}", node, index, memory)
        for node, memories in (held_memory or {}).items()
        for index, memory in enumerate(memories)
        if memory
    ]
    return Ledger(nodes, shares)


def all_entries(ledger: Ledger) -> list[GpuEntry]:
    return [entry for node in ledger.nodes for entry in ledger.entries(node)]


def memory(mib: int, gpus: int = 1, **more: object) -> Request:
    return Request(gpus, Memory(MiB(mib)), **more)  # type: ignore[arg-type] # the builder passes fields through


def whole(gpus: int = 1, **more: object) -> Request:
    return Request(gpus, WHOLE, **more)  # type: ignore[arg-type] # the builder passes fields through
