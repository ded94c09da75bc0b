"""The scheduler extender's calls: what kube-scheduler sends to `filter`, `prioritize` and `bind`, and the answers.

The Go types have no JSON tags today and had lower-case ones before, and Go reads keys in any letter case. So do we;
answers are capitalised as the types of today are, which every Go client reads.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.parsing.fields import Field

HIGHEST_SCORE = 10
"""Scores go from 0 to 10 (`MaxExtenderPriority`); the scheduler scales them."""


@dataclass(frozen=True, slots=True)
class Question:
    """A pod, and the nodes it may run on so far. Also the question of `prioritize`."""

    pod: Mapping[str, Any]
    nodes: tuple[str, ...]
    objects: Mapping[str, Mapping[str, Any]] | None = None
    """The nodes themselves by name, where the scheduler sent them (`nodeCacheCapable: false`)."""


@dataclass(frozen=True, slots=True)
class Binding:
    namespace: str
    pod: str
    uid: str
    node: str


def read_question(body: object) -> Question:
    args = Field(body, "ExtenderArgs")
    pod, nodes, names = (_any_case(args, key) for key in ("Pod", "Nodes", "NodeNames"))
    if not pod.present:
        raise pod.malformed("the pod to schedule")
    if nodes.present and names.present:
        raise names.malformed("either Nodes or NodeNames, not both")
    if names.present:
        return Question(pod.object(), names.strings())
    if nodes.present:
        listed = {node["metadata"]["name"].some_text(): node.object() for node in _any_case(nodes, "items").items()}
        return Question(pod.object(), tuple(listed), listed)
    raise names.malformed("either Nodes or NodeNames, not neither")


def read_binding(body: object) -> Binding:
    args = Field(body, "ExtenderBindingArgs")
    return Binding(
        namespace=_any_case(args, "PodNamespace").some_text(),
        pod=_any_case(args, "PodName").some_text(),
        uid=_any_case(args, "PodUID").some_text(),
        node=_any_case(args, "Node").some_text(),
    )


def filtered(
    objects: Mapping[str, Mapping[str, Any]] | None, fitting: Collection[str], refused: Mapping[str, str]
) -> dict[str, Any]:
    """The nodes that will do, and why the others will not.

    `Nodes` repeats the objects only if they were asked with: a scheduler that sends names reads names.
    """
    nodes = None if objects is None else {"items": [objects[name] for name in fitting]}
    return filter_answer(nodes, fitting, refused)


def filter_answer(nodes: object, names: object, refused: object, error: str = "") -> dict[str, Any]:
    """Each part as it will be written, or as somebody has written it already."""
    return {"Nodes": nodes, "NodeNames": names, "FailedNodes": refused, "Error": error}


def filter_failed(error: str) -> dict[str, Any]:
    """No answer at all: the scheduler tries the pod again later."""
    return filter_answer(None, None, None, error)


def scores(best_first: Sequence[str]) -> dict[str, int]:
    """The best node has the highest score alone: the scheduler draws lots among equals."""
    return {node: max(HIGHEST_SCORE - position, 0) for position, node in enumerate(best_first)}


def prioritized(scores: Mapping[str, int]) -> list[dict[str, Any]]:
    for node, score in scores.items():
        if not 0 <= score <= HIGHEST_SCORE:
            raise ValueError(f"the score of {node} is {score}; the scheduler takes 0 to {HIGHEST_SCORE}")
    return [{"Host": node, "Score": score} for node, score in scores.items()]


def bound(error: str = "") -> dict[str, str]:
    """An empty error means bound."""
    return {"Error": error}


def _any_case(field: Field, key: str) -> Field:
    found = [spelling for spelling in field.object() if spelling.lower() == key.lower()]
    if len(found) > 1:
        raise field.malformed(f"{key} once, not as {' and '.join(sorted(found))}")
    return field[found[0]] if found else Field(None, field.subject, key)
