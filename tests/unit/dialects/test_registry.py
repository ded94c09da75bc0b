"""What a pod asks for, in whichever dialect."""

from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest

from carrel.dialects import carrel, gpuclaim, gpushare, hami, kai, mig, nvidia
from carrel.dialects.gpuclaim_objects import GpuClaim
from carrel.dialects.interface import Dialect, PodRequest
from carrel.dialects.options import DialectOptions, Unit
from carrel.dialects.registry import DIALECTS, request_of
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, ContainerNeed, Gang, Memory, Portion, Request
from carrel.parsing import Malformed
from tests.kit.objects import claim, init_container, pod, pod_from

SPELLINGS: dict[Dialect, dict[str, Any]] = {
    nvidia.DIALECT: {"limits": [{"nvidia.com/gpu": "1"}]},
    mig.DIALECT: {"limits": [{"nvidia.com/mig-1g.10gb": "2"}]},
    gpushare.DIALECT: {"limits": [{"aliyun.com/gpu-mem": "8138"}]},
    gpuclaim.DIALECT: {"annotations": {"gpu.scheduling/claim": "my-gpu-request"}},
    kai.DIALECT: {"annotations": {"gpu-fraction": "0.5"}},
    carrel.DIALECT: {"annotations": {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-memory-mib": "8138"}},
    hami.DIALECT: {"limits": [{"nvidia.com/gpumem": "3000"}]},
}
WORDS = {
    nvidia.DIALECT: "nvidia.com/gpu",
    mig.DIALECT: "nvidia.com/mig-<profile>",
    gpushare.DIALECT: "aliyun.com/gpu-mem",
    gpuclaim.DIALECT: "gpu.scheduling/claim",
    kai.DIALECT: "gpu-fraction",
    carrel.DIALECT: "carrel.dev/gpu-count",
    hami.DIALECT: "nvidia.com/gpumem",
}
REQUESTS = {
    nvidia.DIALECT: Request(1, WHOLE),
    mig.DIALECT: Request(2, WHOLE, slices="1g.10gb"),
    gpushare.DIALECT: Request(1, Memory(MiB(8138))),
    gpuclaim.DIALECT: Request(2, WHOLE),
    kai.DIALECT: Request(1, Portion(Fraction(1, 2))),
    carrel.DIALECT: Request(2, Memory(MiB(8138))),
    hami.DIALECT: Request(1, Memory(MiB(3000))),
}


ALSO_NVIDIA = (hami.DIALECT, gpuclaim.DIALECT)
OTHERS = [pair for pair in combinations(DIALECTS, 2) if not (pair[0] is nvidia.DIALECT and pair[1] in ALSO_NVIDIA)]
"""Each two dialects. HAMi's pods name NVIDIA's resource too and mean theirs; a claim's pods may repeat its count."""


def claims(spec: dict[str, Any] | None = None) -> Any:
    """One claim, `lab/my-gpu-request`, for two GPUs unless said otherwise."""

    def named(namespace: str, name: str) -> GpuClaim | None:
        found = (namespace, name) == ("lab", "my-gpu-request")
        return claim(spec or {"devices": {"count": 2}}) if found else None

    return named


def merged(*spellings: dict[str, Any]) -> dict[str, Any]:
    """All of the spellings on one pod: annotations together, limits in one container."""
    annotations: dict[str, str] = {}
    limits: dict[str, str] = {}
    for spelling in spellings:
        annotations |= spelling.get("annotations", {})
        limits |= spelling.get("limits", [{}])[0]
    return {"annotations": annotations, "limits": [limits]}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_every_dialect_is_understood(dialect: Dialect) -> None:
    ask = request_of(pod(**SPELLINGS[dialect]), claims())
    assert ask == PodRequest(dialect, REQUESTS[dialect], "my-gpu-request" if dialect is gpuclaim.DIALECT else "")


@pytest.mark.parametrize(("one", "other"), OTHERS, ids=lambda each: each.name)
def test_two_dialects_on_one_pod_are_refused_by_name(one: Dialect, other: Dialect) -> None:
    refusal = request_of(pod(**merged(SPELLINGS[one], SPELLINGS[other])), claims())
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("pod lab/train asks for GPUs in 2 ways: ")
    assert WORDS[one] in refusal.reason
    assert WORDS[other] in refusal.reason


def test_all_dialects_on_one_pod_are_refused_by_name() -> None:
    refusal = request_of(pod(**merged(*SPELLINGS.values())), claims())
    assert isinstance(refusal, Refusal)
    assert all(word in refusal.reason for dialect, word in WORDS.items() if dialect is not nvidia.DIALECT)


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param({}, id="an ordinary pod"),
        pytest.param({"limits": [{"cpu": "1", "memory": "1Gi"}]}, id="CPU and memory"),
        pytest.param({"limits": [{"nvidia.com/gpu": "0", "aliyun.com/gpu-mem": "0"}]}, id="zero of both resources"),
        pytest.param({"limits": [{"nvidia.com/mig-1g.5gb": "0"}]}, id="zero MIG slices"),
        pytest.param({"annotations": {"carrel.dev/gpu-model": "T4"}}, id="a model without GPUs"),
        pytest.param({"annotations": {"pod-group-name": "pg-1"}}, id="a gang without GPUs"),
        pytest.param({"limits": []}, id="no containers"),
    ],
)
def test_a_pod_that_asks_for_no_gpu_asks_for_nothing(asking: dict[str, Any]) -> None:
    assert request_of(pod(**asking), claims()) is None


def test_whole_gpus_are_summed_over_containers_and_init_containers_use_the_same() -> None:
    asking = pod(
        limits=[{"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}], init=[init_container("i", {"nvidia.com/gpu": "2"})]
    )
    ask = request_of(asking, claims())
    assert isinstance(ask, PodRequest)
    assert ask.request == Request(3, WHOLE)
    assert ask.request.containers == (
        ContainerNeed("i", 2, WHOLE, init=True),
        ContainerNeed("c0", 1, WHOLE),
        ContainerNeed("c1", 2, WHOLE),
    )


ONE, TWO = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}


@pytest.mark.parametrize(
    ("init", "gpus"),
    [
        pytest.param([init_container("s", ONE, "Always")], 2, id="a sidecar adds to the containers"),
        pytest.param([init_container("i", TWO)], 2, id="an init container does not"),
        pytest.param([init_container("i", ONE, "Never")], 1, id="nor one with a restart policy of its own"),
        pytest.param(
            [init_container("s", ONE, "Always"), init_container("i", TWO)], 3, id="an init container after a sidecar"
        ),
        pytest.param(
            [init_container("i", TWO), init_container("s", ONE, "Always")], 2, id="an init container before a sidecar"
        ),
        pytest.param(
            [init_container("s", ONE, "Always"), init_container("t", ONE, "Always"), init_container("i", ONE)],
            3,
            id="two sidecars",
        ),
    ],
)
def test_sidecars_count_as_kubernetes_counts_them(init: list[dict[str, Any]], gpus: int) -> None:
    """In k8s.io/component-helpers, `AggregateContainerRequests`."""
    ask = request_of(pod(limits=[ONE], init=init), claims())
    assert isinstance(ask, PodRequest)
    assert ask.request.gpus == gpus


@pytest.mark.parametrize(
    "said",
    [
        {"resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "1"}}},
        {"ephemeralContainers": [{"name": "debug", "image": "tools", "targetContainerName": "c0"}]},
        {"volumes": [{"name": "model", "image": {"reference": "registry.example/model:1"}}]},
        {"schedulingGates": [{"name": "example.com/quota"}]},
        {"a field of tomorrow": [{"of": "which nobody has heard"}]},
    ],
    ids=["resources of the pod", "an ephemeral container", "an image volume", "a scheduling gate", "an unknown field"],
)
def test_what_else_todays_pods_say_changes_nothing_about_their_gpus(said: dict[str, Any]) -> None:
    manifest = {
        "metadata": {"name": "train", "namespace": "lab"},
        "spec": {"containers": [{"name": "c0", "resources": {"limits": TWO}}], **said},
    }
    assert request_of(pod_from(manifest), claims()) == PodRequest(nvidia.DIALECT, Request(2, WHOLE))


def test_requests_count_where_there_are_no_limits() -> None:
    asking = pod(init=[{"name": "i", "resources": {"requests": {"nvidia.com/gpu": "2"}}}])
    assert request_of(asking, claims()) == PodRequest(nvidia.DIALECT, Request(2, WHOLE))


def test_the_terms_of_the_cluster_are_used() -> None:
    dialect_options = DialectOptions(memory_unit=Unit.GIB, shared_claims_per_gpu=10)
    shared = claims({"devices": {"count": 1, "exclusivity": "Shared"}})
    assert request_of(
        pod(limits=[{"aliyun.com/gpu-mem": "8"}]), claims(), dialect_options=dialect_options
    ) == PodRequest(gpushare.DIALECT, Request(1, Memory(MiB(8192))))
    assert request_of(pod(**SPELLINGS[gpuclaim.DIALECT]), shared, dialect_options=dialect_options) == PodRequest(
        gpuclaim.DIALECT, Request(1, Portion(Fraction(1, 10))), "my-gpu-request"
    )


def test_a_claim_that_does_not_exist_is_a_refusal_that_says_where_it_was_looked_for() -> None:
    refusal = request_of(pod({"gpu.scheduling/claim": "other"}), claims())
    assert isinstance(refusal, Refusal)
    assert "'other', which does not exist in namespace 'lab'" in refusal.reason


def test_a_refusal_of_a_dialect_is_passed_on() -> None:
    with_limit = pod(annotations={"gpu.scheduling/claim": "my-gpu-request"}, limits=[{"nvidia.com/gpu": "3"}])
    assert isinstance(request_of(with_limit, claims()), Refusal)


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param({"annotations": {"gpu.scheduling/claim": ""}}, id="a claim without a name"),
        pytest.param({"annotations": {"gpu-fraction": "2"}}, id="a fraction of two"),
        pytest.param({"limits": [{"nvidia.com/gpu": "0.5"}]}, id="half a GPU, plainly"),
        pytest.param({"limits": [{"aliyun.com/gpu-mem": "-1"}]}, id="less than nothing"),
        pytest.param({"annotations": {"carrel.dev/gpu-count": "many"}}, id="many GPUs"),
        pytest.param(
            {"limits": [{"nvidia.com/gpu": "1"}], "annotations": {"pod-group-name": "pg", "carrel.dev/gang-size": "0"}},
            id="a gang of nobody",
        ),
    ],
)
def test_what_cannot_be_understood_is_malformed(asking: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="pod lab/train"):
        request_of(pod(**asking), claims())


# --- MIG slices ---

SLICE = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"


@pytest.mark.parametrize(
    ("spelling", "request_"),
    [
        pytest.param({"limits": [{"nvidia.com/gpu": "1"}]}, Request(1, WHOLE, SLICE), id="only where slices are GPUs"),
        pytest.param(
            {"annotations": {"carrel.dev/gpu-count": "1"}}, Request(1, WHOLE, SLICE, slices="any"), id="a whole slice"
        ),
        pytest.param(
            {"annotations": {"gpu-fraction": "0.5"}},
            Request(1, Portion(Fraction(1, 2)), SLICE, slices="any"),
            id="a part of a slice",
        ),
    ],
)
def test_a_slice_is_asked_for_by_its_model_in_every_dialect(spelling: dict[str, Any], request_: Request) -> None:
    asked = request_of(pod(**merged(spelling, {"annotations": {"carrel.dev/gpu-model": SLICE}})), claims())
    assert isinstance(asked, PodRequest)
    assert asked.request == request_


def test_parts_of_several_slices_are_refused() -> None:
    words = {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-memory-mib": "4096", "carrel.dev/gpu-model": SLICE}
    refusal = request_of(pod(annotations=words), claims())
    assert isinstance(refusal, Refusal)
    assert "asks for a part of 2 MIG slices, which no program can use as one" in refusal.reason


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"annotations": {"carrel.dev/gpu-model": "T4"}}, id="by annotation"),
        pytest.param({"node_selector": {"nvidia.com/gpu.product": "T4"}}, id="by node selector"),
        pytest.param(
            {"annotations": {"carrel.dev/gpu-model": "T4"}, "node_selector": {"nvidia.com/gpu.product": "T4"}},
            id="by both, alike",
        ),
    ],
)
def test_a_model_can_be_chosen_in_every_dialect(dialect: Dialect, words: dict[str, Any]) -> None:
    spelling = merged(SPELLINGS[dialect], words)
    ask = request_of(pod(**spelling, node_selector=words.get("node_selector")), claims())
    assert isinstance(ask, PodRequest)
    assert ask.request.model == "T4"


def test_two_models_are_refused_by_name() -> None:
    asking = pod(
        {"carrel.dev/gpu-model": "T4"}, [{"nvidia.com/gpu": "1"}], node_selector={"nvidia.com/gpu.product": "A100"}
    )
    refusal = request_of(asking, claims())
    assert isinstance(refusal, Refusal)
    assert "T4" in refusal.reason
    assert "A100" in refusal.reason


# --- a claim and NVIDIA's resource -----------------------------------------------------------------------------------


def test_a_claim_and_as_many_gpus_in_the_limits_are_one_request() -> None:
    asking = pod({"gpu.scheduling/claim": "my-gpu-request"}, limits=[{"nvidia.com/gpu": "2"}, {}])

    ask = request_of(asking, claims())

    assert ask == PodRequest(gpuclaim.DIALECT, Request(2, WHOLE), "my-gpu-request")
    assert ask.request.containers == (ContainerNeed("c0", 2, WHOLE),)
    assert ask.request.by_kubelet, "the pod asks the kubelet itself: no reservation pod may take a second GPU"


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        pytest.param({"count": 2}, "of 2 GPUs and asks for 3 by nvidia.com/gpu; make the numbers equal", id="fewer"),
        pytest.param({"count": 1}, "of 1 GPU and asks for 3 by nvidia.com/gpu; make the numbers equal", id="one"),
        pytest.param({"count": 3, "exclusivity": "Shared"}, "shared GPUs and asks for whole ones", id="shared"),
    ],
)
def test_a_claim_and_other_limits_are_refused_with_both_numbers(devices: dict[str, Any], words: str) -> None:
    asking = pod({"gpu.scheduling/claim": "my-gpu-request"}, limits=[{"nvidia.com/gpu": "3"}])

    refusal = request_of(asking, claims({"devices": devices}))

    assert isinstance(refusal, Refusal)
    assert words in refusal.reason


# --- gangs -----------------------------------------------------------------------------------------------------------

IN_GANG = {"devices": {"count": 4}, "gangRef": "my-distributed-training-job"}


@pytest.mark.parametrize(
    ("annotations", "spec", "counted", "size"),
    [
        pytest.param({}, {**IN_GANG, "gangSize": 8}, 2, 8, id="the claim says"),
        pytest.param({"carrel.dev/gang-size": "4"}, IN_GANG, 2, 4, id="the pod says"),
        pytest.param({}, IN_GANG, 2, 2, id="nobody says, so it is found out"),
    ],
)
def test_a_claims_gang_has_a_name_and_a_size(
    annotations: dict[str, str], spec: dict[str, Any], counted: int, size: int
) -> None:
    asking = pod({"gpu.scheduling/claim": "my-gpu-request", **annotations})
    ask = request_of(asking, claims(spec), lambda pod, gang: Gang(f"lab/{gang}", counted))
    assert isinstance(ask, PodRequest)
    assert ask.request.gang == Gang("lab/my-distributed-training-job", size)


@pytest.mark.parametrize(
    ("annotations", "gang"),
    [
        pytest.param({"kai.scheduler/batch-min-member": "3"}, Gang("lab/pg-1", 3), id="its annotation says the size"),
        pytest.param({}, None, id="a group of one is no gang"),
        pytest.param({"carrel.dev/gang-size": "1"}, None, id="nor is one that says so"),
    ],
)
def test_a_pod_group_is_a_gang(annotations: dict[str, str], gang: Gang | None) -> None:
    ask = request_of(pod({"gpu-fraction": "0.5", "pod-group-name": "pg-1", **annotations}), claims())
    assert isinstance(ask, PodRequest)
    assert ask.request.gang == gang
