"""Reads a simulated cluster, or the simulated GPUs of one node, from a small YAML file.

    nodes:
      - name: dgx-1
        labels: {zone: lab}
        gpus:
          - {count: 8, model: NVIDIA-A100-SXM4-80GB, memoryMiB: 81920, perIsland: 4, bandwidthGBps: 600}

The file of one node has only `gpus`; `8xTesla-T4:15360+2xNVIDIA-A100:81920` (count, model, MiB) is short for one.
`mig: [3g.40gb, 2g.20gb]` divides each GPU of its line into such MIG slices. `unusable: "XID 79"` makes a GPU unhealthy;
`activity: training` says what a program does on it (`carrel.node.simulated_activity`); `keptMiB: 450` is what the
driver of a real GPU keeps of its memory, and `driver: "615.20"` its release. An error names the file, the line, the
value and what is expected.
"""

import re
import uuid
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import yaml

from carrel.dialects import mig
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpus import MOST_SLICES, Gpu, MiB, MigSlice, Node, slice_index
from carrel.parsing import Malformed
from carrel.parsing.validation import mistake_in, steps

Memory = Annotated[int, msgspec.Meta(ge=1, le=16 * 1024 * 1024)]
MigProfile = Annotated[str, msgspec.Meta(pattern=mig.PROFILE)]
Name = Annotated[NodeName, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")]

F = TypeVar("F", bound=msgspec.Struct)

_IDENTITIES = uuid.UUID("6f1d1c4e-3f0b-4b52-9d54-0c8a5d9f6b11")
"""The same file gives the same UUIDs, so that a simulated node may be restarted."""

_SHORT_GROUP = re.compile(r"(\d{1,9})x([\w.()-]+):(\d{1,9})")
_SHORT = re.compile(rf"{_SHORT_GROUP.pattern}(\+{_SHORT_GROUP.pattern})*")


class _Loader(yaml.SafeLoader):
    """Also gives the line of a value that looks like a date or a number but is not valid."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


class _GpuGroup(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    model: Annotated[str, msgspec.Meta(min_length=1)]
    memory_mib: Memory = msgspec.field(name="memoryMiB")
    count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    per_island: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many GPUs are linked with each other. 0: none."""
    bandwidth_gbps: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="bandwidthGBps", default=0)
    mig: Annotated[tuple[MigProfile, ...], msgspec.Meta(max_length=MOST_SLICES)] = ()
    """The profiles of the slices into which each GPU is divided."""
    unusable: str = ""
    activity: str = ""
    kept_mib: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="keptMiB", default=0)
    """What its driver keeps of its memory for itself."""
    driver: str = ""
    """The release of its driver."""


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    gpus: list[_GpuGroup]
    labels: dict[str, str] = {}


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True):
    nodes: Annotated[list[_Node], msgspec.Meta(min_length=1)]


class _NodeFile(msgspec.Struct, forbid_unknown_fields=True):
    gpus: list[_GpuGroup]


def text_in(file: Path) -> str:
    """Raises `Malformed` or `OSError`."""
    contents = file.read_bytes().removeprefix(BOM_UTF8)  # Excel writes it
    try:
        return contents.decode()
    except UnicodeDecodeError as error:
        line = contents[: error.start].count(b"\n") + 1
        raise Malformed(file.name, f"line {line}", contents[error.start : error.end], "text in UTF-8") from None


def read_cluster(text: str, source: str) -> list[Node]:
    """`source` is the name of the file, for messages."""
    found, tree = _read(text, source, _ClusterFile)
    names = [node.name for node in found.nodes]
    for position, name in enumerate(names):
        if name in names[:position]:
            line = _line_of(tree, f"$.nodes[{position}].name")
            raise Malformed(source, f"line {line} ($.nodes[{position}].name)", name, "a name that no other node has")
    return [_node(node) for node in found.nodes]


def is_short_form(text: str) -> bool:
    """Whether these are the GPUs of a node in one word."""
    return _SHORT.fullmatch(text.strip()) is not None


def read_gpus(text: str, source: str, node: NodeName) -> tuple[Gpu, ...]:
    """The GPUs of one node, from a file of its own or in short."""
    found = _read_node(text, source)
    return _node(_Node(node, found.gpus)).gpus


def read_activities(text: str, source: str) -> tuple[str, ...]:
    """What is said of each of these GPUs, in their order; empty: nothing."""
    found = _read_node(text, source)
    return tuple(group.activity for group in found.gpus for _ in range(group.count * (len(group.mig) or 1)))


def read_drivers(text: str, source: str) -> tuple[tuple[MiB, str], ...]:
    """What the driver keeps of each of these GPUs, and its release, in their order."""
    found = _read_node(text, source)
    each_of = ((group, group.count * (len(group.mig) or 1)) for group in found.gpus)
    # The memory of a MIG slice is what its programs have.
    return tuple(
        (MiB(0 if group.mig else group.kept_mib), group.driver) for group, count in each_of for _ in range(count)
    )


@contextmanager
def yaml_errors(text: str, source: str) -> Iterator[None]:
    """What is wrong with YAML that is read within the block is raised as `Malformed`, with the line."""
    try:
        yield
    except RecursionError:
        raise Malformed(source, "line 1", text, "YAML that is nested less deeply") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Malformed(source, f"line {line}", chr(error.character), "YAML, without control characters") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "the file"
        raise Malformed(source, where, getattr(error, "problem", "") or str(error), "YAML") from None


def _read_node(text: str, source: str) -> _NodeFile:
    if is_short_form(text):
        groups = (each.groups() for each in _SHORT_GROUP.finditer(text))
        rows = (f"{{count: {count}, model: {model!r}, memoryMiB: {mib}}}" for count, model, mib in groups)
        text = f"gpus: [{', '.join(rows)}]"
    found, _ = _read(text, source, _NodeFile)
    return found


def _read(text: str, source: str, kind: type[F]) -> tuple[F, yaml.Node | None]:
    with yaml_errors(text, source):
        loader = _Loader(text)
        tree = loader.get_single_node()
        data = loader.construct_document(tree) if tree is not None else None
    try:
        return msgspec.convert(data, kind), tree
    except msgspec.ValidationError as error:
        wrong = mistake_in(data, str(error))
        where = f"line {_line_of(tree, wrong.path)} ({wrong.path})"
        raise Malformed(source, where, wrong.value, wrong.expected) from None


def _node(node: _Node) -> Node:
    gpus: list[Gpu] = []
    index = 0
    for number_of_group, group in enumerate(node.gpus):
        for number in range(group.count):
            gpu = Gpu(
                uuid=GpuUuid(f"GPU-{uuid.uuid5(_IDENTITIES, f'{node.name}/{index}')}"),
                node=node.name,
                index=index,
                model=group.model,
                memory=MiB(group.memory_mib),
                island=f"{number_of_group}-{number // group.per_island}" if group.per_island else "",
                bandwidth_gbps=group.bandwidth_gbps,
                unusable=group.unusable,
            )
            gpus += divided(gpu, group.mig) if group.mig else [gpu]
            index += 1
    return Node(node.name, mig.advertised_as_gpus(gpus, node.labels), node.labels)


def divided(gpu: Gpu, profiles: Sequence[str]) -> list[Gpu]:
    """The MIG slices of a simulated GPU."""
    return [
        replace(
            gpu,
            uuid=GpuUuid(f"{mig.UUID}{uuid.uuid5(_IDENTITIES, f'{gpu.uuid}/{number}/{profile}')}"),
            index=slice_index(gpu.index, number),
            model=mig.model_of(gpu.model, profile),
            memory=MiB(1024 * mig.gib_of(profile)),
            island="",
            bandwidth_gbps=0,
            slice=MigSlice(profile, gpu.uuid, gpu.index, gpu.memory),
        )
        for number, profile in enumerate(profiles)
    ]


def _line_of(tree: yaml.Node | None, path: str) -> int:
    """The line of the deepest part of the path that exists."""
    node = tree
    for step in steps(path):
        deeper = None
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            deeper = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            deeper = next((value for key, value in node.value if key.value == step), None)
        if deeper is None:
            break
        node = deeper
    return node.start_mark.line + 1 if node is not None else 1
