"""The proof that a pod came through the webhook."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carrel.dialects.seal import Seal, SealedPod, asked_amounts, place_of
from carrel.kubernetes.objects.kinds import Pod
from tests.kit.objects import pod_from

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SEAL = Seal((b"key",))
BOOKED = {"carrel.dev/tier": "booked", "carrel.dev/user": "alice"}
HAMI = {**BOOKED, "carrel.dev/hami": '{"containers":{"main":{"nvidia.com/gpu":1,"nvidia.com/gpumem":3000}}}'}
ONE_GPU = [("main", "nvidia.com/gpu", "1")]
TWO_GPUS = [("main", "nvidia.com/gpu", "2")]


def sealed(notes: dict[str, str], place: str = "lab/p", seal: Seal = SEAL) -> dict[str, str]:
    return {**notes, **seal.write(SealedPod(place, notes, ONE_GPU), "review-1", NOON)}


RECORDED = sealed(HAMI)
SEALED = sealed(BOOKED)


def is_on(notes: dict[str, str], place: str = "lab/p", seal: Seal = SEAL) -> bool:
    return seal.is_on(SealedPod(place, notes, ONE_GPU), NOON)


def test_a_seal_is_good_on_the_pod_it_was_made_for() -> None:
    assert is_on(SEALED)
    assert is_on(RECORDED)
    assert is_on({**SEALED, "terminate-at": "2099-01-01T00:00:00Z"}), "an end may be moved later"
    assert is_on({**SEALED, "carrel.dev/tier": "opportunistic"}), "a tier follows the booking"


@pytest.mark.parametrize(
    ("place", "annotations", "made"),
    [
        pytest.param("lab/p", BOOKED, NOON, id="there is none"),
        pytest.param("other/p", SEALED, NOON, id="in another namespace"),
        pytest.param("lab/eve", SEALED, NOON, id="of another name"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/user": "eve"}, NOON, id="another user"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/gpu-model": "H100"}, NOON, id="another model"),
        pytest.param("lab/p", {**SEALED, "gpu-fraction": "0.5"}, NOON, id="a wish by annotation that was not there"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/hami": "{}"}, NOON, id="a request that was not recorded"),
        pytest.param("lab/p", {**RECORDED, "carrel.dev/hami": "{}"}, NOON, id="another recorded request"),
        pytest.param("lab/p", {key: RECORDED[key] for key in SEALED}, NOON, id="the recorded request is taken off"),
        pytest.param("lab/p", SEALED, NOON + timedelta(seconds=61), id="copied onto a later pod"),
        pytest.param("lab/p", SEALED, NOON - timedelta(seconds=61), id="copied onto an earlier pod"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/admitted": "rubbish"}, NOON, id="rubbish"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/admitted": "2026-11-16T12:00:00Z x é"}, NOON, id="no hex"),
        pytest.param(
            "lab/p",
            {**SEALED, "carrel.dev/admitted": SEALED["carrel.dev/admitted"].replace("12:00:00", "12:00:30")},
            NOON,
            id="another instant",
        ),
        pytest.param("lab/p", sealed(BOOKED, seal=Seal((b"other",))), NOON, id="another key"),
    ],
)
def test_a_seal_is_no_good(place: str, annotations: dict[str, str], made: datetime) -> None:
    assert not SEAL.is_on(SealedPod(place, annotations, ONE_GPU), made)


def test_a_seal_is_no_good_on_a_pod_that_asks_for_other_gpus() -> None:
    assert not SEAL.is_on(SealedPod("lab/p", SEALED, TWO_GPUS), NOON)
    assert not SEAL.is_on(SealedPod("lab/p", SEALED, []), NOON)


def test_what_a_pod_asks_for_is_the_same_before_and_after_the_api_server_fills_in_requests() -> None:
    limits = {"nvidia.com/gpu": 1, "cpu": "4"}
    assert (
        asked_amounts([("main", limits, {}), ("side", {}, {})]) == asked_amounts([("main", limits, limits)]) == ONE_GPU
    )


def test_a_key_can_be_changed_while_pods_wait() -> None:
    both = Seal((b"new", b"key"))

    assert is_on(SEALED, seal=both)
    assert is_on(sealed(BOOKED, seal=both), seal=Seal((b"new",)))


def a_pod(name: str = "p", uid: str = "u1", node: str = "", **metadata: Any) -> Pod:
    made = {"name": name, "namespace": "lab", "uid": uid, "creationTimestamp": "2026-11-16T12:00:01Z", **metadata}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}
    return pod_from({"metadata": made, "spec": {"nodeName": node, "containers": [container]}})


def test_a_pod_without_a_good_seal_is_told_what_to_do() -> None:
    assert SEAL.missing_on(a_pod(annotations=SEALED)) is None
    refusal = SEAL.missing_on(a_pod())
    assert refusal is not None and refusal.reason == (
        "pod lab/p gets no GPU: it was not admitted by Carrel's webhook, or what that wrote was changed; "
        "delete the pod and create it again"
    )


@pytest.mark.parametrize(
    ("metadata", "is_good"),
    [
        ({"name": "p"}, True),
        ({"name": "eve"}, False),
        ({"name": "eve", "generateName": "p"}, False),
    ],
    ids=["its own", "another's", "another's, who says that it was made up"],
)
def test_the_seal_of_somebody_elses_pod_is_invalid(metadata: dict[str, str], is_good: bool) -> None:
    assert (SEAL.missing_on(a_pod(annotations=SEALED, **metadata)) is None) is is_good


MADE_UP = sealed(BOOKED, place_of("lab", "", "job-"))


def test_a_name_that_the_api_server_makes_up_is_not_in_the_seal() -> None:
    assert SEAL.missing_on(a_pod("job-x7k2p", generateName="job-", annotations=MADE_UP)) is None


def test_of_pods_with_the_same_seal_only_one_is_served() -> None:
    first = a_pod("job-a", "u1", generateName="job-", annotations=MADE_UP)
    copy = a_pod("job-b", "u2", generateName="job-", annotations=MADE_UP)
    assert SEAL.missing_on(first, [first, copy]) is None
    refusal = SEAL.missing_on(copy, [first, copy])
    assert refusal is not None and "is a copy of that of pod lab/job-a" in refusal.reason

    placed = a_pod("job-c", "u3", node="n1", generateName="job-", annotations=MADE_UP)
    assert SEAL.missing_on(first, [first, placed]) is not None, "whoever has a GPU keeps it, and is the only one"


def test_a_pod_is_no_copy_of_itself_though_it_is_known_to_be_bound_by_now() -> None:
    asked_about = a_pod("p", "u1", annotations=SEALED)
    assert SEAL.missing_on(asked_about, [a_pod("p", "u1", node="n1", annotations=SEALED)]) is None


def test_two_pods_of_one_template_in_one_second_have_different_seals() -> None:
    pod = SealedPod(place_of("lab", "", "job-"), BOOKED, ONE_GPU)
    assert SEAL.write(pod, "review-1", NOON) != SEAL.write(pod, "review-2", NOON)


def test_the_key_is_shown_to_nobody() -> None:
    assert "key" not in repr(SEAL).replace("keys", "")
