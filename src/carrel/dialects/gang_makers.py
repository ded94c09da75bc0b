"""How many pods a gang has, by what makes its pods, where neither the pods nor their claim say it.

    Kubernetes' PodGroup    spec.schedulingPolicy.gang.minCount; its pods name it in spec.schedulingGroup
    LeaderWorkerSet         one gang for each group: its size is the annotation leaderworkerset.sigs.k8s.io/size of the
                            pods, its group their label leaderworkerset.sigs.k8s.io/group-key
    Job                     min(parallelism, completions that are left)
    JobSet                  the same for each of its Jobs whose pods are in the gang
    ReplicaSet              replicas. A Deployment raises them step by step during a rolling update; its new pods are a
                            gang of their own: pods of different revisions do not wait for each other
    StatefulSet             replicas, if it starts its pods in parallel
    PyTorchJob, MPIJob      replicas of each kind of pod that is in the gang

A maker that starts its next pod only when the last one runs cannot make a gang: its pods would wait for ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from carrel.kubernetes.objects.kinds import Container, Object, OwnerReference, Pod, PodMetadata, PodSpec, Resources
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import Resource
from carrel.ledger.refusals import Refusal
from carrel.parsing.fields import Field, whole_number

GROUP_SIZE = "leaderworkerset.sigs.k8s.io/size"
GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"
TEMPLATE_HASH = "pod-template-hash"
"""A Deployment writes on its pods from which version of its template they come."""

PLURALS = {
    ("batch", "Job"): "jobs",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
    ("apps", "ReplicaSet"): "replicasets",
    ("apps", "StatefulSet"): "statefulsets",
    ("kubeflow.org", "PyTorchJob"): "pytorchjobs",
    ("kubeflow.org", "MPIJob"): "mpijobs",
}
"""The makers that say how many pods they make; of which version, the pod that names them says."""
POD_GROUPS = Resource(Object, "scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
"""Kubernetes' own, which is not KAI's."""

IsInGang = Callable[[Mapping[str, Any]], bool]
"""Whether pods of this template are in the gang."""


@dataclass(frozen=True, slots=True)
class Maker:
    """An object that makes pods of a gang, by name."""

    resource: Resource[Object]
    namespace: str
    name: str
    uid: str
    """Empty: whichever object has this name."""

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"


def maker_of(pod: Pod) -> Maker | None:
    """What makes the pod; None: nothing that says how many pods it makes."""
    if group := pod.spec.scheduling_group.pod_group_name:
        return Maker(POD_GROUPS, pod.metadata.namespace, group, "")
    return _named(pod.metadata.owner_references, pod.metadata.namespace)


def group_size_of(pod: Pod) -> int | None:
    """How many pods the group of a LeaderWorkerSet has, as its pod says. Raises `Malformed`."""
    size = pod.metadata.annotations.get(GROUP_SIZE)
    if size is None or GROUP_KEY not in pod.metadata.labels:
        return None
    return whole_number(size, subject(pod.metadata), f"metadata.annotations['{GROUP_SIZE}']", at_least=1)


def part_of(pod: Pod) -> str:
    """Which of several gangs of one name the pod belongs to; empty: there is only one."""
    labels = pod.metadata.labels
    return pod.spec.scheduling_group.pod_group_name or labels.get(GROUP_KEY, "") or labels.get(TEMPLATE_HASH, "")


def makers_maker(made: Mapping[str, Any]) -> Maker | None:
    """A Job may be one of several that a JobSet or an MPIJob makes, which knows more. Not another Job: two could name
    each other."""
    metadata = Field(made, "the object")["metadata"]
    references = tuple(
        OwnerReference(
            api_version=each["apiVersion"].text(),
            kind=each["kind"].text(),
            name=each["name"].text(),
            uid=each["uid"].text(),
            controller=each["controller"].flag(),
        )
        for each in metadata["ownerReferences"].items()
    )
    if made.get("kind") != "Job":
        return None
    above = _named(references, metadata["namespace"].text())
    return above if above is not None and above.resource.kind != "Job" else None


def _named(references: tuple[OwnerReference, ...], namespace: str) -> Maker | None:
    for each in references:
        group, _, version = each.api_version.rpartition("/")
        plural = PLURALS.get((group, each.kind))
        if each.controller and plural is not None:
            return Maker(Resource(Object, group, version, plural, each.kind), namespace, each.name, each.uid)
    return None


def pod_of_template(template: Mapping[str, Any], namespace: str) -> Pod:
    """The pod of a template, as far as it says what it asks for. Raises `Malformed`."""
    document = Field(template, "the pod template")
    containers = tuple(
        Container(resources=Resources(*(_amounts(each["resources"][name]) for name in ("limits", "requests"))))
        for group in ("initContainers", "containers")
        for each in document["spec"][group].items()
    )
    metadata = PodMetadata(namespace=namespace, annotations=document["metadata"]["annotations"].texts())
    return Pod(metadata=metadata, spec=PodSpec(containers=containers))


def _amounts(amounts: Field) -> dict[str, str]:
    # A custom resource may have numbers where Kubernetes' own kinds have text.
    return {name: str(amount) for name, amount in amounts.object().items()}


# --- how many pods it makes ------------------------------------------------------------------------------------------


def pods_made_by(made_by: Mapping[str, Any], is_in_gang: IsInGang) -> int | Refusal:
    """How many pods of the gang the object makes. Raises `Malformed` if it cannot be read."""
    kind = str(made_by.get("kind", ""))
    document = Field(made_by, f"{kind} {(made_by.get('metadata') or {}).get('name', '')}")
    spec = document["spec"]
    match kind:
        case "PodGroup":
            return spec["schedulingPolicy"]["gang"]["minCount"].integer(at_least=0)
        case "Job":
            return _of_job(spec, document["status"]["succeeded"].integer())
        case "JobSet":
            return _of_job_set(document, is_in_gang)
        case "ReplicaSet":
            return _or_one(spec["replicas"])
        case "StatefulSet":
            return _of_stateful_set(document)
        case _:
            return _of_replica_specs(spec, is_in_gang)


def _of_job(spec: Field, succeeded: int = 0) -> int:
    parallelism = _or_one(spec["parallelism"])
    if not spec["completions"].present:
        return parallelism
    return min(parallelism, max(spec["completions"].integer(at_least=0) - succeeded, 0))


def _of_job_set(job_set: Field, is_in_gang: IsInGang) -> int | Refusal:
    jobs = job_set["spec"]["replicatedJobs"].items()
    chosen = [each for each in jobs if is_in_gang(each["template"]["spec"]["template"].object())] or jobs
    if len(chosen) > 1 and job_set["spec"]["startupPolicy"]["startupPolicyOrder"].text() == "InOrder":
        return _one_after_the_other(job_set, "startupPolicyOrder InOrder", "set startupPolicyOrder: AnyOrder")
    return sum(_or_one(each["replicas"]) * _of_job(each["template"]["spec"]) for each in chosen)


def _of_stateful_set(stateful_set: Field) -> int | Refusal:
    replicas = _or_one(stateful_set["spec"]["replicas"])
    if replicas > 1 and stateful_set["spec"]["podManagementPolicy"].text() != "Parallel":
        return _one_after_the_other(
            stateful_set, "podManagementPolicy OrderedReady", "set podManagementPolicy: Parallel"
        )
    return replicas


def _of_replica_specs(spec: Field, is_in_gang: IsInGang) -> int:
    """How many pods Kubeflow's jobs make: `pytorchReplicaSpecs`, `mpiReplicaSpecs`, by the role of the pods."""
    roles = [
        role
        for key, group in spec.entries().items()
        if key.endswith("ReplicaSpecs")
        for role in group.entries().values()
    ]
    chosen = [role for role in roles if is_in_gang(role["template"].object())] or roles
    return sum(_or_one(role["replicas"]) for role in chosen)


def _one_after_the_other(maker: Field, why: str, help_: str) -> Refusal:
    what = f"{maker.subject} starts its pods one after the other ({why})"
    return Refusal(f"{what}, so they would wait for each other for ever; {help_}, or leave the gang out")


def _or_one(number: Field) -> int:
    return number.integer(at_least=0) if number.present else 1
