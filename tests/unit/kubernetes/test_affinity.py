"""Where a pod may run, by its node selector, its required node affinity and its tolerations."""

from typing import Any

import msgspec
import pytest

from carrel.kubernetes.objects.affinity import (
    as_written,
    closed_by,
    demands_of,
    excluding_taints,
    may_run_on,
    takes_the_same_pods,
    untolerated_taints,
)
from carrel.kubernetes.objects.kinds import NodeObject, Pod


def a_node(**labels: str) -> NodeObject:
    return msgspec.convert({"metadata": {"name": "n1", "labels": labels}}, NodeObject)


def ready(status: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": status}]}


def a_pod(*terms: dict[str, Any], **selector: str) -> Pod:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    spec: dict[str, Any] = {"nodeSelector": selector, "affinity": {"nodeAffinity": required} if terms else {}}
    return msgspec.convert({"spec": spec}, Pod)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(a_pod(), True, id="says nothing"),
        pytest.param(a_pod(zone="a"), True, id="selects its label"),
        pytest.param(a_pod(zone="b"), False, id="selects another value"),
        pytest.param(a_pod(expression("zone", "In", "b", "a")), True, id="In"),
        pytest.param(a_pod(expression("zone", "In", "b")), False, id="not In"),
        pytest.param(a_pod(expression("disk", "NotIn", "ssd")), True, id="NotIn holds without the label"),
        pytest.param(a_pod(expression("zone", "NotIn", "a")), False, id="NotIn"),
        pytest.param(a_pod(expression("zone", "Exists")), True, id="Exists"),
        pytest.param(a_pod(expression("zone", "DoesNotExist")), False, id="DoesNotExist"),
        pytest.param(a_pod(expression("gpus", "Gt", "7")), True, id="Gt"),
        pytest.param(a_pod(expression("gpus", "Lt", "8")), False, id="Lt"),
        pytest.param(a_pod(expression("zone", "Gt", "7")), False, id="Gt of what is no number"),
        pytest.param(a_pod(expression("zone", "Like", "a")), False, id="an operator that nobody knows"),
        pytest.param(a_pod({}), False, id="a term that says nothing"),
        pytest.param(a_pod(expression("zone", "In", "b"), expression("zone", "In", "a")), True, id="one of two terms"),
        pytest.param(
            a_pod({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), True, id="by name"
        ),
        pytest.param(a_pod(expression("zone", "In", "a"), zone="b"), False, id="both must hold"),
    ],
)
def test_a_pod_may_run_on_nodes_that_meet_its_requirements(pod: Pod, expected: bool) -> None:
    assert may_run_on(pod, a_node(zone="a", gpus="8")) is expected


@pytest.mark.parametrize(
    ("node", "words"),
    [
        pytest.param({"spec": {"unschedulable": True}}, "cordoned (kubectl uncordon n1)", id="cordoned"),
        pytest.param({"status": ready("False")}, "not ready", id="its kubelet says that it is not ready"),
        pytest.param({"status": ready("Unknown")}, "not ready", id="its kubelet is silent"),
        pytest.param(
            {"spec": {"unschedulable": True}, "status": ready("Unknown")},
            "cordoned (kubectl uncordon n1)",
            id="cordoned for a reboot",
        ),
        pytest.param({"status": ready("True")}, "", id="ready"),
        pytest.param({}, "", id="it says nothing"),
    ],
)
def test_a_node_that_is_cordoned_or_not_ready_counts_as_tainted_before_kubernetes_has_written_the_taint(
    node: dict[str, Any], words: str
) -> None:
    there = msgspec.convert({"metadata": {"name": "n1"}, **node}, NodeObject)

    assert next((closed_by(taint, "n1") for taint in untolerated_taints(a_pod(), there)), "") == words
    assert untolerated_taints(tolerating({"operator": "Exists"}), there) == []


def test_a_taint_that_kubernetes_has_written_counts_once() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    node = msgspec.convert({"metadata": {"name": "n1"}, "spec": {"unschedulable": True, "taints": [taint]}}, NodeObject)

    assert [as_written(each) for each in excluding_taints(node)] == ["node.kubernetes.io/unschedulable:NoSchedule"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({}, {}, True, id="a heartbeat"),
        pytest.param({"status": ready("True")}, {"status": ready("Unknown")}, False, id="it is not ready any more"),
        pytest.param({}, {"spec": {"unschedulable": True}}, False, id="cordoned"),
    ],
)
def test_only_some_changes_of_a_node_decide_which_pods_it_takes(
    before: dict[str, Any], after: dict[str, Any], expected: bool
) -> None:
    assert takes_the_same_pods(msgspec.convert(before, NodeObject), msgspec.convert(after, NodeObject)) is expected


DEDICATED = {"key": "dedicated", "value": "team-a", "effect": "NoSchedule"}


def tolerating(*tolerations: dict[str, str]) -> Pod:
    return msgspec.convert({"spec": {"tolerations": list(tolerations)}}, Pod)


def tainted(*taints: dict[str, str]) -> NodeObject:
    return msgspec.convert({"metadata": {"name": "n1"}, "spec": {"taints": list(taints)}}, NodeObject)


@pytest.mark.parametrize(
    ("pod", "taint", "expected"),
    [
        pytest.param(tolerating(), DEDICATED, "dedicated=team-a:NoSchedule", id="tolerates nothing"),
        pytest.param(
            tolerating(),
            {"key": "k8s.io/not-ready", "effect": "NoExecute"},
            "k8s.io/not-ready:NoExecute",
            id="no value",
        ),
        pytest.param(tolerating(), {**DEDICATED, "effect": "PreferNoSchedule"}, "", id="only a preference"),
        pytest.param(tolerating({"key": "dedicated", "value": "team-a"}), DEDICATED, "", id="equal"),
        pytest.param(
            tolerating({"key": "dedicated", "value": "team-b"}),
            DEDICATED,
            "dedicated=team-a:NoSchedule",
            id="other value",
        ),
        pytest.param(tolerating({"key": "dedicated", "operator": "Exists"}), DEDICATED, "", id="any value"),
        pytest.param(tolerating({"operator": "Exists"}), DEDICATED, "", id="any key"),
        pytest.param(tolerating({"operator": "Exists", "effect": "NoSchedule"}), DEDICATED, "", id="that effect"),
        pytest.param(
            tolerating({"operator": "Exists", "effect": "NoExecute"}),
            DEDICATED,
            "dedicated=team-a:NoSchedule",
            id="another effect",
        ),
    ],
)
def test_a_taint_excludes_pods_that_do_not_tolerate_it(pod: Pod, taint: dict[str, str], expected: str) -> None:
    assert "".join(map(as_written, untolerated_taints(pod, tainted(taint)))) == expected


def test_pods_with_the_same_node_requirements_have_equal_demands() -> None:
    pods = [
        a_pod(),
        a_pod(zone="a"),
        a_pod(expression("zone", "In", "a")),
        a_pod(expression("zone", "In", "a"), expression("zone", "In", "b")),
        tolerating({"key": "dedicated", "operator": "Exists"}),
    ]
    assert len({demands_of(pod) for pod in pods}) == len(pods)
    assert demands_of(a_pod(zone="a")) == demands_of(a_pod(zone="a"))
