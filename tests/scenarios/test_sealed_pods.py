"""With a seal key, only pods that came through the webhook are placed."""

from datetime import timedelta

from carrel.dialects.interface import PodRequest
from carrel.dialects.seal import Seal, SealedPod
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.cluster_state import ClusterOptions, ClusterState
from carrel.ledger.refusals import Refusal
from kubernetes_in_memory import EmbeddedApi
from tests.kit.objects import pod_from
from tests.kit.reviews import GPU, NOON

SEAL = Seal((b"key",))
CARREL = ClusterState(Client(EmbeddedApi()), ClusterOptions(seal=SEAL))
ONE_GPU = [("a", "nvidia.com/gpu", "1")]
SEALED = SEAL.write(SealedPod("lab/p", {}, ONE_GPU), "review", NOON)


def a_pod(annotations: dict[str, str], minutes_old: int = 0, **spec: object) -> Pod:
    made = (NOON + timedelta(minutes=minutes_old)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": "p", "namespace": "lab", "creationTimestamp": made, "annotations": annotations}
    return pod_from(
        {"metadata": metadata, "spec": {"containers": [{"name": "a", "resources": {"limits": GPU}}], **spec}}
    )


def test_a_pod_with_a_valid_seal_is_placed_and_one_without_is_refused_with_the_reason() -> None:
    assert isinstance(CARREL.read_request(a_pod(SEALED)), PodRequest)
    for unseen in (a_pod({}), a_pod({**SEALED, "carrel.dev/user": "eve"}), a_pod(SEALED, minutes_old=3)):
        refusal = CARREL.read_request(unseen)
        assert isinstance(refusal, Refusal) and "not admitted by Carrel's webhook" in refusal.reason


def test_the_tier_of_a_pod_follows_its_booking_so_the_seal_is_not_over_it() -> None:
    for tier in ("booked", "opportunistic"):
        assert isinstance(CARREL.read_request(a_pod({**SEALED, "carrel.dev/tier": tier})), PodRequest)


def test_a_bound_pod_keeps_its_gpu_and_a_pod_without_a_request_needs_no_seal() -> None:
    assert isinstance(CARREL.read_request(a_pod({}, nodeName="n1")), PodRequest)
    assert CARREL.read_request(a_pod({}, containers=[{"name": "a"}])) is None


def test_without_a_key_no_seal_is_needed() -> None:
    assert isinstance(ClusterState(Client(EmbeddedApi())).read_request(a_pod({})), PodRequest)
