"""Objects that somebody made to stop others: any text in the places that an API server does not check, and what older
API servers accepted. They are written into the store of the embedded API, past its own checks."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from carrel.kubernetes.objects.resources import Resource
from kubernetes_in_memory import EmbeddedApi
from tests.kit.any_pod import ASKED
from tests.kit.arbitrary_json import documents
from tests.kit.forged import PROTECTED, PROTECTED_LABELS

Json = dict[str, Any]

CONTROL = "".join(map(chr, (*range(32), 127, 0x85, 0x9B, 0x2028, 0x202E, 0x2066, 0xFEFF)))
NASTY = (
    "", " ", "0", "-0", "--5", "+5", "-1", "1e3", "1e999999", "0.1.2", "9" * 400, "9" * 5000, "²", "٣", "NaN", "inf",
    "[" * 3000, "{}", "[]", "null", '{"at": 3}', "\x1b[2J\x1b[31mred", "a\nb=c", "\u202egpj", "\x00", CONTROL,
    "1900-01-01T08:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z", "x" * 20_000,
    "booked", "opportunistic", "GPU-n1-0", "GPU-n1-0,,", "gpu-n1-0", "lab/victim", "true", "2026-11-16T12:00:00Z",
)  # fmt: skip
TEXTS = (
    st.sampled_from(NASTY)
    | st.text(max_size=20)
    | st.text(alphabet=CONTROL, max_size=40)
    | st.from_regex(r"[0-9eE.+-]{1,8}[numkKMGTPEi]{0,2}", fullmatch=True)
    | documents().map(json.dumps)
)
PEOPLE = st.sampled_from(["booker@lab.example", "ada@lab.example", "Ada@Lab.Example ", "eve@lab.example"]) | TEXTS
KEYS = st.sampled_from(
    sorted(
        {
            *(key for asked in ASKED for key in asked),
            *PROTECTED,
            "carrel.dev/gang-size",
            "carrel.dev/on-revocation",
            "carrel.dev/when-full",
            "gpu-fraction-num-devices",
            "kai.scheduler/batch-min-member",
            "leaderworkerset.sigs.k8s.io/size",
            "nvidia.com/use-gpuuuid",
            "pod-group-name",
            "terminate-at",
        }
    )
)
NOTES = st.dictionaries(KEYS, TEXTS, max_size=6) | st.dictionaries(KEYS | TEXTS, TEXTS, max_size=4)
LABELS = st.dictionaries(st.sampled_from(["app", "pod-template-hash", *PROTECTED_LABELS]) | TEXTS, TEXTS, max_size=3)
AMOUNTS = st.sampled_from(["1", "2", "0", "-1", "0.5", "1e30", "99999999", "9" * 60]) | TEXTS
RESOURCES = st.sampled_from(
    [
        "nvidia.com/gpu",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-count",
        "nvidia.com/gpumem",
        "nvidia.com/mig-1g.5gb",
        "cpu",
    ]
)
LIMITS = st.dictionaries(RESOURCES, AMOUNTS, max_size=3)
ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "PATH"]) | TEXTS}, optional={"value": TEXTS}
    ),
    max_size=3,
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["main", "side"]) | TEXTS, "resources": st.fixed_dictionaries({"limits": LIMITS})},
        optional={
            "image": TEXTS,
            "env": ENV,
            "args": st.lists(TEXTS, max_size=2),
            "restartPolicy": st.sampled_from(["Always", "x"]),
        },
    ),
    max_size=3,
)
REQUIREMENT = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["kubernetes.io/hostname", "metadata.name", ""]) | TEXTS,
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "", "gt"]),
    },
    optional={"values": st.lists(TEXTS, max_size=3)},
)
TERM = st.fixed_dictionaries(
    {},
    optional={"matchExpressions": st.lists(REQUIREMENT, max_size=3), "matchFields": st.lists(REQUIREMENT, max_size=2)},
)
TERMS = st.fixed_dictionaries({"nodeSelectorTerms": st.lists(TERM, max_size=3)})
AFFINITY = TERMS.map(lambda terms: {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
TOLERATIONS = st.lists(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("key", "operator", "value", "effect"), TEXTS)), max_size=3
)
OWNERS = st.lists(
    st.fixed_dictionaries(
        {
            "apiVersion": st.sampled_from(["batch/v1", "apps/v1", "v1", "", "///"]),
            "kind": st.sampled_from(["Job", "ReplicaSet", "Pod", ""]),
            "name": st.sampled_from(["poison"]) | TEXTS,
            "uid": st.sampled_from(["uid-poison", "uid-job", "x" * 300]),
        },
        optional={"controller": st.booleans()},
    ),
    max_size=3,
)
CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.just("PodScheduled") | TEXTS, "status": st.sampled_from(["True", "False"])},
        optional={"reason": st.just("Unschedulable") | TEXTS, "lastTransitionTime": TEXTS},
    ),
    max_size=2,
)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def poisoned_pods(draw: st.DrawFn, *, is_bound: bool) -> Json:
    """Either bound to n9, a node of its own, or bound nowhere."""
    metadata = draw(
        optional(
            labels=LABELS,
            ownerReferences=OWNERS,
            deletionTimestamp=st.sampled_from(["2026-11-16T12:00:00Z", "2027-11-16T12:00:00Z"]),
            deletionGracePeriodSeconds=st.sampled_from([0, 1, 31_536_000]),
            finalizers=st.lists(TEXTS, max_size=2),
        )
    )
    notes = draw(NOTES) | {"carrel.dev/user": draw(PEOPLE)}
    if draw(st.booleans()):
        notes |= {"carrel.dev/tier": draw(st.sampled_from(["booked", "opportunistic"]))}
    spec = draw(
        optional(
            affinity=AFFINITY,
            tolerations=TOLERATIONS,
            initContainers=CONTAINERS,
            schedulingGates=st.lists(TEXTS.map(lambda name: {"name": name}), max_size=2),
            priorityClassName=TEXTS,
            terminationGracePeriodSeconds=st.sampled_from([-(2**31), -1, 0, 2**40]),
        )
    )
    status = draw(
        optional(phase=st.sampled_from(["", "Pending", "Running", "Failed", "x"]), startTime=TEXTS, message=TEXTS)
    )
    spec |= {"containers": draw(CONTAINERS), "schedulerName": draw(st.sampled_from(["gpu-scheduler", "mine"]))}
    if is_bound:
        spec |= {"nodeName": "n9"}
    # Younger than all healthy pods, or of an unknown age: then it counts as the youngest.
    created = draw(st.sampled_from(["2026-11-16T12:00:00Z", "", "soon", "\n"]))
    fixed = {"name": "poison", "namespace": "lab", "uid": "uid-poison", "creationTimestamp": created}
    conditions = {"conditions": draw(CONDITIONS)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, **fixed, "annotations": notes},
        "spec": spec,
        "status": status | conditions,
    }


def of_kind(api_version: str, kind: str, name: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """A custom resource that is older than its schema."""
    space = {"namespace": "lab"} if kind in ("GpuClaim", "PodGroup") else {}
    metadata = {"name": name, "uid": f"uid-{kind}", **space}
    head = {"apiVersion": api_version, "kind": kind}
    return optional(**parts).map(lambda more: {**head, "metadata": metadata, **more})


def anything(*keys: str) -> st.SearchStrategy[Any]:
    """Any JSON, with these words in it."""
    return documents(st.sampled_from(keys)) | st.dictionaries(st.sampled_from(keys), documents() | TEXTS, max_size=4)


def store(api: EmbeddedApi, resource: Resource[Any], document: Mapping[str, Any]) -> None:
    """As if an older API server had accepted it."""
    storage = (resource.group, resource.plural)
    metadata = document["metadata"]
    before = api.store.collection(storage).get(metadata.get("namespace", ""), metadata["name"])
    api.store.write(storage, before, {**document, "metadata": dict(metadata)})
