"""On which nodes a pod may run: by node selector, required node affinity, and the taints that it tolerates.

Only kube-scheduler knows about volumes, other pods, and free CPU and memory.
"""

import re
from collections.abc import Callable, Hashable, Mapping

from carrel.kubernetes.objects.kinds import NodeObject, NodeRequirement, NodeTerm, Pod, Taint, Toleration

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
EXCLUDING_EFFECTS = ("NoSchedule", "NoExecute")
"""The third effect, PreferNoSchedule, excludes no pod."""

CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""Whoever tolerates this taint may run on a cordoned node, also before the taint is there."""


def may_run_on(pod: Pod, node: NodeObject) -> bool:
    return selects(pod, node) and (not node.spec.unschedulable or tolerates(pod, CORDONED))


def selects(pod: Pod, node: NodeObject) -> bool:
    """Whether the pod's node selector and affinity allow the node."""
    labels = node.metadata.labels
    if not pod.spec.node_selector.items() <= labels.items():
        return False
    terms = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution.node_selector_terms
    return not terms or any(_meets(term, labels, node.metadata.name) for term in terms)


def untolerated_taint(pod: Pod, node: NodeObject) -> str:
    """The first taint of the node that the pod does not tolerate, as kubectl writes it; empty if there is none."""
    for taint in node.spec.taints:
        if taint.effect in EXCLUDING_EFFECTS and not tolerates(pod, taint):
            return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
    return ""


def tolerates(pod: Pod, taint: Taint) -> bool:
    return any(_tolerates(each, taint) for each in pod.spec.tolerations)


def demands_of(pod: Pod) -> Hashable:
    """Pods with equal values may run on the same nodes."""
    terms = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution.node_selector_terms
    return (
        frozenset(pod.spec.node_selector.items()),
        tuple(
            tuple((each.key, each.operator, tuple(each.values)) for each in requirements)
            for term in terms
            for requirements in (term.match_expressions, term.match_fields)
        ),
        tuple((each.key, each.operator, each.value, each.effect) for each in pod.spec.tolerations),
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty effect means any; with `Exists`, an empty key means any."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    if toleration.key == taint.key and (compares := _COMPARING.get(toleration.operator)) is not None:
        return _compare(taint.value, (toleration.value,), compares)
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def _meets(term: NodeTerm, labels: Mapping[str, str], name: str) -> bool:
    """All requirements of the term. No node meets an empty term."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name}
    return all(_holds(each, labels) for each in term.match_expressions) and all(
        _holds(each, fields) for each in term.match_fields
    )


def _holds(requirement: NodeRequirement, words: Mapping[str, str]) -> bool:
    rule = _OPERATORS.get(requirement.operator)
    return rule is not None and rule(words.get(requirement.key), tuple(requirement.values))


def _number(text: str | None) -> int | None:
    """As Go reads it. API servers before 1.32 accepted any text as an operand of `Gt` and `Lt`."""
    number = int(text) if text is not None and _WHOLE.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _compare(word: str | None, values: tuple[str, ...], is_right: Callable[[int, int], bool]) -> bool:
    """Both must be whole numbers."""
    left, right = _number(word), _number(values[0] if values else None)
    return left is not None and right is not None and is_right(left, right)


_COMPARING: Mapping[str, Callable[[int, int], bool]] = {"Gt": int.__gt__, "Lt": int.__lt__}
"""Of a taint's value with a toleration's, since Kubernetes 1.35, where the feature is on."""

_OPERATORS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda word, values: word in values,
    "NotIn": lambda word, values: word not in values,
    "Exists": lambda word, _: word is not None,
    "DoesNotExist": lambda word, _: word is None,
    "Gt": lambda word, values: _compare(word, values, int.__gt__),
    "Lt": lambda word, values: _compare(word, values, int.__lt__),
}
