"""With a seal key, only pods that came through the webhook are placed."""

import json
from datetime import timedelta
from typing import Any

from carrel.admission.assembly import AdmissionWebhook
from carrel.admission.options import AdmissionOptions
from carrel.admission.review import read_pod, read_review
from carrel.cluster.options import ClusterOptions, utc_now
from carrel.cluster.state import ClusterState
from carrel.dialects.interface import PodRequest
from carrel.dialects.seal import Seal, SealedPod
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import BindTarget
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from kubernetes_in_memory import EmbeddedApi
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.objects import pod_from
from tests.kit.reviews import GPU, NOON, review

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
    assert isinstance(CARREL.pod_facts.asked(a_pod(SEALED)), PodRequest)
    for unseen in (a_pod({}), a_pod({**SEALED, "carrel.dev/user": "eve"}), a_pod(SEALED, minutes_old=3)):
        refusal = CARREL.pod_facts.asked(unseen)
        assert isinstance(refusal, Refusal) and "not admitted by Carrel's webhook" in refusal.reason


def test_the_tier_of_a_pod_follows_its_booking_so_the_seal_is_not_over_it() -> None:
    for tier in ("booked", "opportunistic"):
        assert isinstance(CARREL.pod_facts.asked(a_pod({**SEALED, "carrel.dev/tier": tier})), PodRequest)


def test_a_bound_pod_keeps_its_gpu_and_a_pod_without_a_request_needs_no_seal() -> None:
    assert isinstance(CARREL.pod_facts.asked(a_pod({}, nodeName="n1")), PodRequest)
    assert CARREL.pod_facts.asked(a_pod({}, containers=[{"name": "a"}])) is None


def test_without_a_key_no_seal_is_needed() -> None:
    assert isinstance(ClusterState(Client(EmbeddedApi())).pod_facts.asked(a_pod({})), PodRequest)


# --- copies ----------------------------------------------------------------------------------------------------------


async def made_by_hand(lab: Lab, annotations: dict[str, str]) -> None:
    """As while the webhook's configuration is missing."""
    container = {"name": "a", "image": "work", "resources": {"limits": GPU}}
    metadata = {"generateName": "job-", "annotations": annotations}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    await lab.client.create(PODS, body, "lab")


async def test_a_seal_that_is_copied_to_a_pod_of_the_same_template_gives_no_second_gpu() -> None:
    async with a_lab([a_node("n1")], in_real_time=True) as lab:
        notes = SEAL.write(SealedPod("lab/job-*", {}, ONE_GPU), "review", utc_now())
        for _ in range(3):
            await made_by_hand(lab, notes)
        carrel = ClusterState(lab.client, ClusterOptions(seal=SEAL))
        await carrel.informers.read_once()

        answers = [carrel.pod_facts.asked(pod) for pod in carrel.pods.store]
        assert len([each for each in answers if isinstance(each, PodRequest)]) == 1
        refused = [each.reason for each in answers if isinstance(each, Refusal)]
        assert len(refused) == 2
        assert all("carrel.dev/admitted is a copy of that of pod lab/job-" in each for each in refused)


async def test_a_scheduler_that_asks_about_a_pod_that_was_just_bound_is_not_told_of_a_copy() -> None:
    """kube-scheduler tries a pod again whose bind has timed out there, and sends it as it knows it: not bound."""
    async with a_lab([a_node("n1")], in_real_time=True) as lab:
        notes = SEAL.write(SealedPod("lab/job-*", {}, ONE_GPU), "review", utc_now())
        await made_by_hand(lab, notes)
        carrel = ClusterState(lab.client, ClusterOptions(seal=SEAL))
        await carrel.informers.read_once()
        (as_sent,) = carrel.pods.store

        await lab.client.bind(BindTarget("lab", as_sent.metadata.name, as_sent.metadata.uid, "n1"))
        await carrel.informers.read_once()
        (as_known,) = carrel.pods.store
        assert as_known.spec.node_name == "n1"
        assert isinstance(carrel.pod_facts.asked(as_sent), PodRequest)


async def test_the_webhook_seals_a_copy_anew_and_leaves_its_own_seal_in_a_second_review() -> None:
    async with a_lab([a_node("n1")], in_real_time=True) as lab:
        carrel = ClusterState(lab.client, ClusterOptions(seal=SEAL))
        webhook = AdmissionWebhook(carrel, None, AdmissionOptions())
        await carrel.informers.read_once()

        async def sealed(manifest: dict[str, Any], uid: str) -> dict[str, Any]:
            body = review(manifest)
            body["request"]["uid"] = uid
            decision = await webhook.admission.mutate(*read_pod(read_review(json.dumps(body).encode())))
            assert decision.wanted is not None
            return decision.wanted

        container = {"name": "a", "image": "work", "resources": {"limits": GPU}}
        first = await sealed({"metadata": {"generateName": "job-"}, "spec": {"containers": [container]}}, "one")
        again = await sealed(first, "two")
        assert again["metadata"]["annotations"]["carrel.dev/admitted"] == _seal_of(first)

        await made_by_hand(lab, first["metadata"]["annotations"])
        await carrel.informers.read_once()
        copied = await sealed(first, "three")
        assert _seal_of(copied) != _seal_of(first)


def _seal_of(manifest: dict[str, Any]) -> str:
    return str(manifest["metadata"]["annotations"]["carrel.dev/admitted"])
