"""The answers to kube-scheduler's calls: `filter`, `prioritize` and `bind`, with the capitalised keys of Go's types."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from carrel.parsing.printable import printable

HIGHEST_SCORE = 10
"""Scores go from 0 to 10 (`MaxExtenderPriority`); the scheduler scales them."""


@dataclass(frozen=True, slots=True)
class BindArgs:
    namespace: str
    pod: str
    uid: str
    node: str


def filter_result(
    objects: Mapping[str, object] | None, fitting: Collection[str], refused: Mapping[str, str]
) -> dict[str, Any]:
    """The nodes that fit, and why the others do not.

    `Nodes` is set only if the scheduler sent objects: a scheduler that sends names reads names.
    """
    nodes = None if objects is None else {"items": [objects[name] for name in fitting]}
    return {"Nodes": nodes, "NodeNames": fitting, "FailedNodes": refused, "Error": ""}


def filter_failed(error: str) -> dict[str, Any]:
    """An error: the scheduler tries the pod again later."""
    return {"Nodes": None, "NodeNames": None, "FailedNodes": None, "Error": printable(error)}


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
