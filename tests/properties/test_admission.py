"""The webhook's answer is settled (who asks again with it gets the same), its patch applies, and nothing breaks it.

`CARREL_SWEEP=1` looks at 10,000 pods instead of 150.
"""

import asyncio
import copy
import json
import os
from datetime import timedelta
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carrel.admission.options import AdmissionOptions
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why
from carrel.dialects.options import WhenFull
from carrel.dialects.seal import Seal
from carrel.ids import PodUid
from tests.kit.any_pod import any_pod
from tests.kit.reviews import (
    NOON,
    SPAWNER,
    BookedPeople,
    Json,
    Reviewed,
    ReviewedCluster,
    RunningPod,
    a_booking,
    review,
)

RECORD = HandOver(PodUid("gone"), "lab/gone", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-1")
UNLISTED = "system:serviceaccount:elsewhere:hub"
USERS = ("alice@lab.example", "bob@c", SPAWNER, UNLISTED, "system:serviceaccount:kube-system:job-controller")
PODS = 10_000 if os.environ.get("CARREL_SWEEP") else 150

LATER = a_booking(start=NOON + timedelta(minutes=30), name="b2")
BOOKINGS: tuple[tuple[Json, ...], ...] = ((), (a_booking(),), (a_booking(gpus=2), LATER), (LATER,))
RUNNING: tuple[tuple[RunningPod, ...], ...] = (
    (),
    (RunningPod("half", gpus=(0, 1), mib=8138),),
    (RunningPod("busy", gpus=(0, 1, 2)),),
    (RunningPod("mine", "alice@lab.example"), RunningPod("waits", "alice@lab.example", gpus=())),
)
NAMESPACES: tuple[dict[str, str], ...] = (
    {},
    {"owner": "owner@lab.example"},
    {"carrel.dev/exempt": "true"},
    {"carrel.dev/when-full": "cpu"},
    {"carrel.dev/when-full": "wait"},
    {"carrel.dev/when-full": "odd"},
)

clusters = st.builds(
    ReviewedCluster,
    bookings=st.sampled_from(BOOKINGS),
    running=st.sampled_from(RUNNING),
    booking_lookup=st.none()
    | st.builds(
        BookedPeople,
        st.sampled_from(({}, {"alice@lab.example": NOON + timedelta(days=1)})),
        silence=st.sampled_from(("", "refused")),
    ),
    options=st.builds(AdmissionOptions, st.booleans(), st.sampled_from(WhenFull), st.booleans(), st.booleans()),
    namespace=st.sampled_from(NAMESPACES),
    handed_over=st.sampled_from(((), (RECORD,))),
    classes=st.sampled_from(((), ("carrel-gpu",))),
    seal=st.none() | st.just(Seal((b"key",))),
    opportunistic_gpus=st.sampled_from((0, 1)),
)


@settings(max_examples=PODS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), clusters, st.sampled_from(USERS))
def test_a_second_review_changes_nothing_and_the_patch_applies(
    random: Random, cluster: ReviewedCluster, user: str
) -> None:
    async def twice() -> tuple[Reviewed, Reviewed]:
        pod = any_pod(random)
        first = await cluster.create(pod, user)
        dry_run = await cluster.create(pod, user, dry_run=True)
        assert (dry_run.patch, dry_run.message) == (first.patch, first.message)
        return first, await cluster.create(first.object, user)

    first, second = asyncio.run(twice())

    assert first.allowed or first.message
    if first.allowed:
        assert second.allowed and second.patch == []
        _never_sees_more_than_its_own(first)


def _never_sees_more_than_its_own(told: Reviewed) -> None:
    """No container of a GPU pod has a word of its author in what it sees."""
    if told.object["spec"].get("schedulerName") != "gpu-scheduler" or "admitted" not in str(told.annotations):
        return
    for container in (*told.object["spec"]["containers"], *told.object["spec"].get("initContainers", [])):
        seen = told.env_of(container).get("NVIDIA_VISIBLE_DEVICES", "the plugin's")
        assert seen in ("void", "none", "the plugin's") or "carrel.dev/" in seen


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=PODS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.sampled_from(("CREATE", "UPDATE", "DELETE")), JSON)
def test_whatever_stands_anywhere_in_a_review_is_answered(random: Random, operation: str, anything: Any) -> None:
    subresource = random.choice(("", "status", "ephemeralcontainers", "binding"))
    pod, old = any_pod(random), any_pod(random)
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "env": []}]
    question = review(pod, old=old, operation=operation, subresource=subresource)
    for _ in range(random.randint(1, 2)):
        _put_somewhere(random, question, anything)

    async def ask() -> tuple[int, bytes]:
        cluster = ReviewedCluster(running=[RunningPod("busy", gpus=(0, 1, 2))], bookings=[a_booking()])
        return await (await cluster.handler()).mutate(json.dumps(question).encode())

    status, said = asyncio.run(ask())
    assert status in (200, 400), said
    assert json.loads(said)


def _put_somewhere(random: Random, place: Any, anything: Any) -> None:
    while True:
        key = random.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
        inside = place[key]
        if not isinstance(inside, dict | list) or not inside or random.random() < 0.25:
            place[key] = copy.deepcopy(anything)
            return
        place = inside
