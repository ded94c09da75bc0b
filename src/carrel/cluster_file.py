"""Reads a simulated cluster, or the simulated cards of one node, from a small YAML file.

    nodes:
      - name: dgx-1
        labels: {zone: lab}
        cards:
          - {count: 8, model: NVIDIA-A100-SXM4-80GB, memoryMiB: 81920, perIsland: 4, bandwidthGBps: 600}

The file of one node has only `cards`. `unusable: "XID 79"` makes a card unhealthy.
Everything wrong is told with the file, the line, the value and what would be right.
"""

import uuid
from typing import Annotated, TypeVar

import msgspec
import yaml

from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.parsing import Malformed

Memory = Annotated[int, msgspec.Meta(ge=1, le=16 * 1024 * 1024)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")]

F = TypeVar("F", bound=msgspec.Struct)

_IDENTITIES = uuid.UUID("6f1d1c4e-3f0b-4b52-9d54-0c8a5d9f6b11")
"""The same file gives the same UUIDs, so that a simulated node may be restarted."""


_WORDS = {"object": "a mapping", "array": "a list", "int": "a whole number", "str": "a text"}


class _Loader(yaml.SafeLoader):
    """A value that looks like a date or a number and is none has a line, too."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


class _Cards(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    model: Annotated[str, msgspec.Meta(min_length=1)]
    memory_mib: Memory = msgspec.field(name="memoryMiB")
    count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    per_island: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many cards are linked with each other. 0: none."""
    bandwidth_gbps: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="bandwidthGBps", default=0)
    unusable: str = ""


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    cards: list[_Cards]
    labels: dict[str, str] = {}


class _ClusterFile(msgspec.Struct, forbid_unknown_fields=True):
    nodes: Annotated[list[_Node], msgspec.Meta(min_length=1)]


class _NodeFile(msgspec.Struct, forbid_unknown_fields=True):
    cards: list[_Cards]


def read_cluster(text: str, source: str) -> list[Node]:
    """`source` names the file in complaints."""
    found, tree = _read(text, source, _ClusterFile)
    names = [node.name for node in found.nodes]
    for position, name in enumerate(names):
        if name in names[:position]:
            line = _line_of(tree, f"$.nodes[{position}].name")
            raise Malformed(source, f"line {line} ($.nodes[{position}].name)", name, "a name that no other node has")
    return [_node(node) for node in found.nodes]


def read_cards(text: str, source: str, node: str) -> tuple[Gpu, ...]:
    """The cards of one node, from a file of its own."""
    found, _ = _read(text, source, _NodeFile)
    return _node(_Node(node, found.cards)).gpus


def _read(text: str, source: str, kind: type[F]) -> tuple[F, yaml.Node | None]:
    try:
        tree = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 # a SafeLoader
    except RecursionError:
        raise Malformed(source, "line 1", text, "YAML that is nested less deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "the file"
        raise Malformed(source, where, getattr(error, "problem", "") or str(error), "YAML") from None
    try:
        return msgspec.convert(data, kind), tree
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `")
        path = path.rstrip("`") or "$"
        raise Malformed(
            source, f"line {_line_of(tree, path)} ({path})", _value_at(data, path), _expected(what)
        ) from None


def _expected(what: str) -> str:
    """The library's complaint as the end of our sentence: the value itself is in it already."""
    if what.startswith("Expected "):
        kind, _, more = what.removeprefix("Expected ").partition(", got ")[0].replace("`", "").partition(" ")
        return f"{_WORDS.get(kind, kind)} {more}".strip()
    return what.replace("Object contains", "no").replace("Object missing required", "the")


def _node(node: _Node) -> Node:
    gpus: list[Gpu] = []
    for group, cards in enumerate(node.cards):
        for number in range(cards.count):
            index = len(gpus)
            gpus.append(
                Gpu(
                    uuid=f"GPU-{uuid.uuid5(_IDENTITIES, f'{node.name}/{index}')}",
                    node=node.name,
                    index=index,
                    model=cards.model,
                    memory=MiB(cards.memory_mib),
                    island=f"{group}-{number // cards.per_island}" if cards.per_island else "",
                    bandwidth_gbps=cards.bandwidth_gbps,
                    unusable=cards.unusable,
                )
            )
    return Node(node.name, tuple(gpus), node.labels)


def _steps(path: str) -> list[str | int]:
    """`$.nodes[0].cards` as ["nodes", 0, "cards"]."""
    steps: list[str | int] = []
    for part in path.removeprefix("$").replace("[", ".[").split("."):
        if part.startswith("["):
            steps.append(int(part[1:-1]) if part[1:-1].isdigit() else part)
        elif part:
            steps.append(part)
    return steps


def _line_of(tree: yaml.Node | None, path: str) -> int:
    """The line of the deepest part of the path that is there."""
    node = tree
    for step in _steps(path):
        deeper = None
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            deeper = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            deeper = next((value for key, value in node.value if key.value == step), None)
        if deeper is None:
            break
        node = deeper
    return node.start_mark.line + 1 if node is not None else 1


def _value_at(data: object, path: str) -> object:
    for step in _steps(path):
        try:
            data = data[step]  # type: ignore[index] # whatever cannot be looked into ends the way
        except (TypeError, LookupError):
            break
    return data
