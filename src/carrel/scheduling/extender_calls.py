"""The scheduler extender's calls: what kube-scheduler sends to `filter`, `prioritize` and `bind`, and the answers.

The Go types have no JSON tags today and had lower-case ones before, and Go reads keys in any letter case. So does
Carrel. Answers have the capitalised keys of today's types, which every Go client reads.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from carrel.parsing.fields import Field
from carrel.parsing.printable import printable

HIGHEST_SCORE = 10
"""Scores go from 0 to 10 (`MaxExtenderPriority`); the scheduler scales them."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A pod, and the nodes it may run on so far; for `filter` and for `prioritize`."""

    pod: Mapping[str, Any]
    nodes: tuple[str, ...]
    objects: Mapping[str, Mapping[str, Any]] | None = None
    """The nodes themselves by name, where the scheduler sent them (`nodeCacheCapable: false`)."""


@dataclass(frozen=True, slots=True)
class BindArgs:
    namespace: str
    pod: str
    uid: str
    node: str


def read_extender_args(body: object) -> ExtenderArgs:
    args = Field(body, "ExtenderArgs")
    pod, nodes, names = (_any_case(args, key) for key in ("Pod", "Nodes", "NodeNames"))
    if not pod.present:
        raise pod.malformed("the pod to schedule")
    if nodes.present and names.present:
        raise names.malformed("either Nodes or NodeNames, not both")
    if names.present:
        return ExtenderArgs(pod.object(), names.strings())
    if nodes.present:
        listed = {node["metadata"]["name"].some_text(): node.object() for node in _any_case(nodes, "items").items()}
        return ExtenderArgs(pod.object(), tuple(listed), listed)
    raise names.malformed("either Nodes or NodeNames, not neither")


def read_bind_args(body: object) -> BindArgs:
    args = Field(body, "ExtenderBindingArgs")
    return BindArgs(
        namespace=_any_case(args, "PodNamespace").some_text(),
        pod=_any_case(args, "PodName").some_text(),
        uid=_any_case(args, "PodUID").some_text(),
        node=_any_case(args, "Node").some_text(),
    )


def filter_result(
    objects: Mapping[str, object] | None, fitting: Collection[str], refused: Mapping[str, str]
) -> dict[str, Any]:
    """The nodes that fit, and why the others do not.

    `Nodes` is set only if the scheduler sent objects: a scheduler that sends names reads names.
    """
    nodes = None if objects is None else {"items": [objects[name] for name in fitting]}
    return filter_result_of(nodes, fitting, refused)


def filter_result_of(nodes: object, names: object, refused: object, error: str = "") -> dict[str, Any]:
    """Each part as an object, or as JSON that is encoded already."""
    return {"Nodes": nodes, "NodeNames": names, "FailedNodes": refused, "Error": error}


def filter_failed(error: str) -> dict[str, Any]:
    """An error: the scheduler tries the pod again later."""
    return filter_result_of(None, None, None, printable(error))


def scores(best_first: Mapping[str, bool]) -> dict[str, int]:
    """Only the best node has the highest score: among equals the scheduler chooses at random. Of each node it is said
    whether it may have a score at all: the scheduler adds scores of its own, and ten points outweigh them, one does
    not."""
    places = enumerate(best_first.items())
    return {node: max(HIGHEST_SCORE - place, 0) if is_preferred else 0 for place, (node, is_preferred) in places}


def host_priorities(scores: Mapping[str, int]) -> list[dict[str, Any]]:
    for node, score in scores.items():
        if not 0 <= score <= HIGHEST_SCORE:
            raise ValueError(f"the score of {node} is {score}; the scheduler takes 0 to {HIGHEST_SCORE}")
    return [{"Host": node, "Score": score} for node, score in scores.items()]


def bind_result(error: str = "") -> dict[str, str]:
    """An empty error means that the pod is bound."""
    return {"Error": printable(error)}


def _any_case(field: Field, key: str) -> Field:
    found = [spelling for spelling in field.object() if spelling.lower() == key.lower()]
    if len(found) > 1:
        raise field.malformed(f"{key} once, not as {' and '.join(sorted(found))}")
    return field[found[0]] if found else Field(None, field.subject, key)
