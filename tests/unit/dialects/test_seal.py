"""The proof that a pod came through the webhook."""

from datetime import UTC, datetime, timedelta

import pytest

from carrel.dialects.seal import Seal, place_of
from tests.kit.objects import pod_from

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SEAL = Seal((b"key",))
BOOKED = {"carrel.dev/tier": "booked", "carrel.dev/user": "alice"}
HAMI = {**BOOKED, "carrel.dev/hami": '{"containers":{"main":{"nvidia.com/gpu":1,"nvidia.com/gpumem":3000}}}'}
RECORDED = {**HAMI, **SEAL.write("lab/p", HAMI, NOON)}
SEALED = {**BOOKED, **SEAL.write("lab/p", BOOKED, NOON)}


def test_a_seal_is_good_on_the_pod_it_was_made_for() -> None:
    assert SEAL.is_on("lab/p", SEALED, NOON)
    assert SEAL.is_on("lab/p", RECORDED, NOON)
    assert SEAL.is_on("lab/p", {**SEALED, "terminate-at": "2099-01-01T00:00:00Z"}, NOON), "an end may be moved later"
    assert SEAL.is_on("lab/p", {**SEALED, "carrel.dev/tier": "opportunistic"}, NOON), "a tier follows the booking"


def test_a_seal_of_an_earlier_version_which_was_also_over_the_tier_is_good() -> None:
    mac = "5a574adfab8eaa0b748f39fcf7f9d62d78e2c46c9618e25e10624b44cbb57efb"
    assert SEAL.is_on("lab/p", {**BOOKED, "carrel.dev/admitted": f"2026-11-16T12:00:00Z {mac}"}, NOON)


@pytest.mark.parametrize(
    ("place", "annotations", "made"),
    [
        pytest.param("lab/p", BOOKED, NOON, id="there is none"),
        pytest.param("other/p", SEALED, NOON, id="in another namespace"),
        pytest.param("lab/eve", SEALED, NOON, id="of another name"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/user": "eve"}, NOON, id="another user"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/gpu-model": "H100"}, NOON, id="another model"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/hami": "{}"}, NOON, id="a request that was not recorded"),
        pytest.param("lab/p", {**RECORDED, "carrel.dev/hami": "{}"}, NOON, id="another recorded request"),
        pytest.param("lab/p", {key: RECORDED[key] for key in SEALED}, NOON, id="the recorded request is taken off"),
        pytest.param("lab/p", SEALED, NOON + timedelta(minutes=3), id="copied onto a later pod"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/admitted": "rubbish"}, NOON, id="rubbish"),
        pytest.param("lab/p", {**SEALED, "carrel.dev/admitted": "2026-11-16T12:00:00Z é"}, NOON, id="no hex"),
        pytest.param(
            "lab/p",
            {**SEALED, "carrel.dev/admitted": SEALED["carrel.dev/admitted"].replace("12:00:00", "12:01:00")},
            NOON,
            id="another instant",
        ),
        pytest.param("lab/p", {**BOOKED, **Seal((b"other",)).write("lab/p", BOOKED, NOON)}, NOON, id="another key"),
    ],
)
def test_a_seal_is_no_good(place: str, annotations: dict[str, str], made: datetime) -> None:
    assert not SEAL.is_on(place, annotations, made)


def test_a_key_can_be_changed_while_pods_wait() -> None:
    both = Seal((b"new", b"key"))

    assert both.is_on("lab/p", SEALED, NOON)
    assert Seal((b"new",)).is_on("lab/p", {**BOOKED, **both.write("lab/p", BOOKED, NOON)}, NOON)


def test_a_pod_without_a_good_seal_is_told_what_to_do() -> None:
    manifest = {"metadata": {"name": "p", "namespace": "lab", "creationTimestamp": "2026-11-16T12:00:01Z"}}
    sealed = pod_from({"metadata": {**manifest["metadata"], "annotations": SEALED}})

    assert SEAL.missing_on(sealed) is None
    refusal = SEAL.missing_on(pod_from(manifest))
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
    made = {"namespace": "lab", "creationTimestamp": "2026-11-16T12:00:01Z", "annotations": SEALED}

    assert (SEAL.missing_on(pod_from({"metadata": {**made, **metadata}})) is None) is is_good


def test_a_name_that_the_api_server_makes_up_is_not_in_the_seal() -> None:
    sealed = {**BOOKED, **SEAL.write(place_of("lab", "", "job-"), BOOKED, NOON)}
    made = {"namespace": "lab", "creationTimestamp": "2026-11-16T12:00:01Z", "annotations": sealed}

    assert SEAL.missing_on(pod_from({"metadata": {**made, "name": "job-x7k2p", "generateName": "job-"}})) is None


def test_the_key_is_shown_to_nobody() -> None:
    assert "key" not in repr(SEAL).replace("keys", "")
