"""Why a pod waits is counted as one of a few words."""

from typing import Any

import pytest

from carrel.cluster.waiting.waiting_reason import WaitCause
from carrel.ids import PodUid
from carrel.ledger.tiers import Tier, TierPolicy
from carrel.lifecycle.metrics import WaitingPods
from tests.kit.gpus import a_node
from tests.kit.lab import a_lab
from tests.kit.tiers import OPPORTUNISTIC, WHOLE, an_opportunistic_pod, an_unschedulable_booked_pod

Spec = dict[str, Any]
ADAS = {**OPPORTUNISTIC, "carrel.dev/user": "ada@lab.example"}


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        pytest.param({"limits": {}}, None, id="it asks for no GPU"),
        pytest.param({"limits": WHOLE}, None, id="there is a GPU"),
        pytest.param({"limits": {"nvidia.com/gpu": "2"}}, WaitCause.NO_FREE_GPU, id="it asks for more than is free"),
        pytest.param(
            {"limits": {"nvidia.com/gpu": "3"}}, WaitCause.REQUEST_REFUSED, id="it asks for more than there is"
        ),
        pytest.param(
            {"annotations": {"carrel.dev/gpu-memory-mib": "x"}},
            WaitCause.REQUEST_REFUSED,
            id="its request cannot be read",
        ),
        pytest.param({"limits": WHOLE, "gates": ["a.example/b"]}, WaitCause.SCHEDULING_GATE, id="a gate holds it"),
        pytest.param(
            {"limits": WHOLE, "annotations": {"gpu.scheduling/claim": "no-such-claim"}},
            WaitCause.REQUEST_REFUSED,
            id="its claim does not exist",
        ),
        pytest.param(
            {"limits": WHOLE, "annotations": {"pod-group-name": "g", "carrel.dev/gang-size": "3"}},
            WaitCause.GANG_INCOMPLETE,
            id="its gang is not complete",
        ),
        pytest.param({"limits": WHOLE, "annotations": ADAS}, WaitCause.PERSON_LIMIT, id="its person has enough"),
    ],
)
async def test_each_reason_has_its_word(spec: Spec, cause: WaitCause | None) -> None:
    async with (
        a_lab([a_node("n1", gpus=2)]) as lab,
        lab.replica(tier_policy=TierPolicy(opportunistic_gpus=1)) as replica,
    ):
        await an_opportunistic_pod(lab, replica, "first", annotations=ADAS)
        pod = await replica.sees(await lab.pod("train", **spec))
        waiting = replica.waiting_reason.of(pod)
        assert (waiting.cause if waiting is not None else None) is cause
        assert replica.waiting_reason.why(pod) == (waiting.refusal if waiting is not None else None)


async def test_a_gpu_that_is_left_to_a_booked_pod_is_not_called_full() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await replica.sees(await an_unschedulable_booked_pod(lab, "booked"))
        pod = await replica.sees(await lab.pod("train", limits=WHOLE, annotations=OPPORTUNISTIC))
        waiting = replica.waiting_reason.of(pod)
        assert waiting is not None and waiting.cause is WaitCause.LEFT_TO_BOOKED_PODS


async def test_a_pod_that_may_run_on_no_node_with_gpus_waits_for_a_node() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=WHOLE))
        waiting = replica.waiting_reason.of(pod)
        assert waiting is not None and waiting.cause is WaitCause.NO_NODE


def test_the_labels_are_always_the_same_few() -> None:
    waiting_pods = WaitingPods()
    all_labels = waiting_pods.counts().keys()
    waiting_pods.note(PodUid("uid-1"), WaitCause.NO_FREE_GPU, Tier.BOOKED)
    waiting_pods.note(PodUid("uid-1"), WaitCause.PERSON_LIMIT, None)
    assert waiting_pods.counts().keys() == all_labels
    assert {labels for labels, count in waiting_pods.counts().items() if count} == {("person_limit", "none")}
    waiting_pods.forget(PodUid("uid-1"))
    assert not any(waiting_pods.counts().values())
    assert len(all_labels) == len(WaitCause) * 3
