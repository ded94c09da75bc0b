"""What a PodGroup with sub groups needs, by KAI's own examples."""

from typing import Any

import msgspec
import pytest

from carrel.dialects.kai import PodGroup, why_incomplete
from tests.kit.kai import a_pod_group

REPLICAS = [{"name": f"prefill-{number}", "minMember": 8} for number in range(4)]
LEADERS = [
    {"name": "decode", "minSubGroup": 2},
    {"name": "decode-leaders", "parent": "decode", "minMember": 1},
    {"name": "decode-workers", "parent": "decode", "minMember": 4},
    {"name": "prefill", "minSubGroup": 2},
    {"name": "prefill-leaders", "parent": "prefill", "minMember": 1},
    {"name": "prefill-workers", "parent": "prefill", "minMember": 4},
]
ALL = {"decode-leaders": 1, "decode-workers": 4, "prefill-leaders": 1, "prefill-workers": 4}


def group(**spec: Any) -> PodGroup:
    made = a_pod_group("pg", **spec)
    made["metadata"]["namespace"] = "lab"
    return msgspec.convert(made, PodGroup)


@pytest.mark.parametrize(
    ("spec", "pods", "why"),
    [
        pytest.param(
            {"minSubGroup": 3, "subGroups": REPLICAS}, {f"prefill-{n}": 8 for n in range(3)}, "", id="three of four"
        ),
        pytest.param(
            {"minSubGroup": 3, "subGroups": REPLICAS},
            {f"prefill-{n}": 6 for n in range(4)},
            "it needs 3 of 4 sub groups, and 0 are complete: prefill-0 has 6 of 8 pods; ",
            id="as many pods, in no complete sub group",
        ),
        pytest.param(
            {"subGroups": REPLICAS},
            {f"prefill-{n}": 8 for n in range(3)},
            "it needs 4 of 4 sub groups, and 3 are complete: prefill-3 has 0 of 8 pods",
            id="without minSubGroup, all of them",
        ),
        pytest.param({"minSubGroup": 2, "subGroups": LEADERS}, ALL, "", id="sub groups of sub groups"),
        pytest.param(
            {"minSubGroup": 2, "subGroups": LEADERS},
            {**ALL, "decode-leaders": 0, "decode-workers": 9},
            "decode: it needs 2 of 2 sub groups, and 1 are complete: decode-leaders has 0 of 1 pods",
            id="many workers are no leader",
        ),
        pytest.param(
            {"subGroups": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]},
            {},
            "the parent of its sub group a does not exist, or is a part of it (spec.subGroups)",
            id="two that are parts of each other",
        ),
        pytest.param(
            {"subGroups": [{"name": "a", "minMember": 1}, {"name": "b", "parent": "x"}]},
            {"a": 1},
            "the parent of its sub group b does not exist",
            id="a parent that does not exist",
        ),
        pytest.param(
            {"subGroups": [{"name": f"{n // 2}", "parent": f"{n // 2 - 1}" if n > 1 else ""} for n in range(80)]},
            {},
            "two of its sub groups have the same name",
            id="each name twice, forty deep",
        ),
        pytest.param({"subGroups": [{"name": ""}]}, {}, "or one has none", id="no name"),
        pytest.param(
            {"minSubGroup": 5, "subGroups": REPLICAS},
            {f"prefill-{n}": 8 for n in range(4)},
            "it needs 5 of 4 sub groups",
            id="more than there are",
        ),
    ],
)
def test_a_pod_group_waits_until_its_sub_groups_have_the_pods_that_they_need(
    spec: dict[str, Any], pods: dict[str, int], why: str
) -> None:
    said = why_incomplete(group(**spec), pods)
    assert (why in said) if why else said == ""
    assert not said or said.startswith("PodGroup lab/pg: ")


def test_a_reason_is_short_and_has_few_levels_whatever_the_sub_groups_are() -> None:
    """It is told for every node: thousands of names, or one of a megabyte, must not be repeated so often."""
    names = [f"s{number}" for number in range(5000)]
    threes = [{"name": name, "parent": names[(n - 1) // 3] if n else None} for n, name in enumerate(names)]
    one_by_one = [{"name": name, "parent": names[n - 1] if n else None} for n, name in enumerate(names)]
    long = [{"name": f"{name}-{'x' * 100_000}"} for name in names[:3]]

    reasons = [why_incomplete(group(subGroups=each), {}) for each in (threes, one_by_one, long)]

    assert max(map(len, reasons)) < 500
    assert reasons[1].endswith("its sub groups have 5000 levels, more than 20 (spec.subGroups)")
