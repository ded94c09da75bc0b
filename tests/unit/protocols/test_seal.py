"""The proof that a pod came through the webhook."""

from datetime import UTC, datetime, timedelta

import pytest

from carrel.protocols.seal import Seal
from tests.kit.objects import pod_from

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SEAL = Seal((b"key",))
BOOKED = {"carrel.dev/tier": "booked", "carrel.dev/user": "alice"}
SEALED = {**BOOKED, **SEAL.write("lab", BOOKED, NOON)}


def test_a_seal_is_good_on_the_pod_it_was_made_for() -> None:
    assert SEAL.is_on("lab", SEALED, NOON)
    assert SEAL.is_on("lab", {**SEALED, "terminate-at": "2099-01-01T00:00:00Z"}, NOON), "an end may be moved later"


@pytest.mark.parametrize(
    ("namespace", "annotations", "made"),
    [
        pytest.param("lab", BOOKED, NOON, id="there is none"),
        pytest.param("other", SEALED, NOON, id="in another namespace"),
        pytest.param("lab", {**SEALED, "carrel.dev/tier": "opportunistic"}, NOON, id="another tier"),
        pytest.param("lab", {**SEALED, "carrel.dev/user": "eve"}, NOON, id="another user"),
        pytest.param("lab", {**SEALED, "carrel.dev/gpu-model": "H100"}, NOON, id="another model"),
        pytest.param("lab", SEALED, NOON + timedelta(minutes=3), id="copied onto a later pod"),
        pytest.param("lab", {**SEALED, "carrel.dev/admitted": "rubbish"}, NOON, id="rubbish"),
        pytest.param("lab", {**SEALED, "carrel.dev/admitted": "2026-11-16T12:00:00Z é"}, NOON, id="no hex"),
        pytest.param(
            "lab",
            {**SEALED, "carrel.dev/admitted": SEALED["carrel.dev/admitted"].replace("12:00:00", "12:01:00")},
            NOON,
            id="another instant",
        ),
        pytest.param("lab", {**BOOKED, **Seal((b"other",)).write("lab", BOOKED, NOON)}, NOON, id="another key"),
    ],
)
def test_a_seal_is_no_good(namespace: str, annotations: dict[str, str], made: datetime) -> None:
    assert not SEAL.is_on(namespace, annotations, made)


def test_a_key_can_be_changed_while_pods_wait() -> None:
    both = Seal((b"new", b"key"))

    assert both.is_on("lab", SEALED, NOON)
    assert Seal((b"new",)).is_on("lab", {**BOOKED, **both.write("lab", BOOKED, NOON)}, NOON)


def test_a_pod_without_a_good_seal_is_told_what_to_do() -> None:
    manifest = {"metadata": {"name": "p", "namespace": "lab", "creationTimestamp": "2026-11-16T12:00:01Z"}}
    sealed = pod_from({"metadata": {**manifest["metadata"], "annotations": SEALED}})

    assert SEAL.missing_on(sealed) is None
    refusal = SEAL.missing_on(pod_from(manifest))
    assert refusal is not None and refusal.reason == (
        "pod lab/p gets no card: it was not admitted by Carrel's webhook, or what that wrote was changed; "
        "delete the pod and create it again"
    )


def test_the_key_is_shown_to_nobody() -> None:
    assert "key" not in repr(SEAL).replace("keys", "")
