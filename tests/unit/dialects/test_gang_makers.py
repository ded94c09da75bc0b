"""How many pods what makes them says that it makes."""

from collections.abc import Mapping
from typing import Any

import pytest

from carrel.dialects.gang_makers import group_size_of, maker_of, makers_maker, part_of, pod_of_template, pods_made_by
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from tests.kit.objects import pod_from

GANG: dict[str, Any] = {"metadata": {"annotations": {"gang": "ours"}}}
OTHER: dict[str, Any] = {"metadata": {}}


def in_gang(template: Mapping[str, Any]) -> bool:
    return dict(template) == GANG


def made_by(kind: str, spec: dict[str, Any], status: dict[str, Any] | None = None) -> int | Refusal:
    return pods_made_by({"kind": kind, "metadata": {"name": "train"}, "spec": spec, "status": status or {}}, in_gang)


@pytest.mark.parametrize(
    ("kind", "spec", "status", "pods"),
    [
        pytest.param("Job", {}, {}, 1, id="a Job that says nothing makes one pod"),
        pytest.param("Job", {"parallelism": 4}, {}, 4, id="a Job that works off a queue"),
        pytest.param("Job", {"parallelism": 4, "completions": 2}, {}, 2, id="fewer completions than in parallel"),
        pytest.param("Job", {"parallelism": 4, "completions": 9}, {"succeeded": 7}, 2, id="two completions are left"),
        pytest.param("Job", {"parallelism": 4, "completions": 3}, {"succeeded": 5}, 0, id="more than enough succeeded"),
        pytest.param("ReplicaSet", {"replicas": 3}, {}, 3, id="a ReplicaSet"),
        pytest.param("StatefulSet", {}, {}, 1, id="a StatefulSet of one pod, in whatever order"),
        pytest.param("StatefulSet", {"replicas": 3, "podManagementPolicy": "Parallel"}, {}, 3, id="in parallel"),
        pytest.param(
            "JobSet",
            {
                "replicatedJobs": [
                    {"replicas": 2, "template": {"spec": {"parallelism": 3, "completions": 3, "template": GANG}}},
                    {"template": {"spec": {"template": OTHER}}},
                ]
            },
            {},
            6,
            id="the Jobs of a JobSet whose pods are in the gang",
        ),
        pytest.param(
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"template": GANG}, "Worker": {"replicas": 3, "template": GANG}}},
            {},
            4,
            id="master and workers",
        ),
        pytest.param(
            "MPIJob",
            {"mpiReplicaSpecs": {"Launcher": {"template": OTHER}, "Worker": {"replicas": 3, "template": GANG}}},
            {},
            3,
            id="workers without the launcher, which needs no GPU",
        ),
        pytest.param("PodGroup", {"schedulingPolicy": {"gang": {"minCount": 5}}}, {}, 5, id="Kubernetes' PodGroup"),
    ],
)
def test_a_maker_says_how_many_pods_it_makes(kind: str, spec: Any, status: Any, pods: int) -> None:
    assert made_by(kind, spec, status) == pods


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        pytest.param("StatefulSet", {"replicas": 2}, "set podManagementPolicy: Parallel", id="a StatefulSet"),
        pytest.param(
            "JobSet",
            {
                "replicatedJobs": [{"template": {"spec": {"template": GANG}}}] * 2,
                "startupPolicy": {"startupPolicyOrder": "InOrder"},
            },
            "set startupPolicyOrder: AnyOrder",
            id="a JobSet",
        ),
    ],
)
def test_a_maker_that_starts_one_pod_after_the_other_is_refused(kind: str, spec: Any, words: str) -> None:
    refusal = made_by(kind, spec)
    assert isinstance(refusal, Refusal)
    assert f"{kind} train starts its pods one after the other" in refusal.reason
    assert words in refusal.reason


@pytest.mark.parametrize("spec", [{"replicas": "three"}, {"replicas": -1}, {"replicas": True}])
def test_a_maker_that_cannot_be_read_raises_malformed(spec: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        made_by("ReplicaSet", spec)


def owned(api_version: str, kind: str, **metadata: Any) -> Pod:
    owner = {"apiVersion": api_version, "kind": kind, "name": "train", "uid": "u1", "controller": True}
    return pod_from({"metadata": {"name": "p", "namespace": "lab", "ownerReferences": [owner], **metadata}})


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("batch/v1", "Job", "/apis/batch/v1/namespaces/lab/jobs/train"),
        ("apps/v1", "ReplicaSet", "/apis/apps/v1/namespaces/lab/replicasets/train"),
        ("kubeflow.org/v2beta1", "MPIJob", "/apis/kubeflow.org/v2beta1/namespaces/lab/mpijobs/train"),
    ],
)
def test_a_maker_is_read_in_the_version_that_the_pod_names(api_version: str, kind: str, path: str) -> None:
    maker = maker_of(owned(api_version, kind))
    assert maker is not None
    assert maker.resource.path(maker.namespace, maker.name) == path


def test_a_maker_of_an_unknown_kind_says_nothing() -> None:
    assert maker_of(owned("example.com/v1", "Job")) is None
    assert maker_of(owned("batch/v1", "CronJob")) is None


def test_a_pod_that_names_a_pod_group_of_kubernetes_belongs_to_that() -> None:
    pod = pod_from({"metadata": {"namespace": "lab"}, "spec": {"schedulingGroup": {"podGroupName": "pg"}}})
    maker = maker_of(pod)
    assert maker is not None
    assert maker.resource.path("lab", maker.name) == "/apis/scheduling.k8s.io/v1beta1/namespaces/lab/podgroups/pg"
    assert part_of(pod) == "pg"


def test_a_job_of_a_job_set_is_asked_for_its_maker() -> None:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "all", "uid": "u2", "controller": True}
    maker = makers_maker({"kind": "Job", "metadata": {"namespace": "lab", "ownerReferences": [owner]}})
    assert maker is not None
    assert (maker.resource.kind, maker.name) == ("JobSet", "all")
    assert makers_maker({"kind": "ReplicaSet", "metadata": {"ownerReferences": [owner]}}) is None
    another_job = {**owner, "apiVersion": "batch/v1", "kind": "Job"}
    made = {"kind": "Job", "metadata": {"namespace": "lab", "ownerReferences": [another_job]}}
    assert makers_maker(made) is None, "two Jobs that name each other are not followed"


def test_the_parts_of_a_rolling_update_and_of_a_leader_worker_set_are_told_apart() -> None:
    assert part_of(owned("apps/v1", "ReplicaSet", labels={"pod-template-hash": "7d4b"})) == "7d4b"
    group = {"leaderworkerset.sigs.k8s.io/group-key": "a1"}
    pod = owned("apps/v1", "StatefulSet", labels=group, annotations={"leaderworkerset.sigs.k8s.io/size": "3"})
    assert (part_of(pod), group_size_of(pod)) == ("a1", 3)
    assert part_of(owned("batch/v1", "Job")) == ""


def test_a_template_with_numbers_instead_of_text_is_read() -> None:
    template = {
        "metadata": {"annotations": {"pod-group-name": "pg"}},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]},
    }
    pod = pod_of_template(template, "lab")
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "1"}
    assert pod.metadata.annotations == {"pod-group-name": "pg"}
