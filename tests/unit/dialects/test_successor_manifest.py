"""The manifest of a successor, as it is kept in a Secret."""

from base64 import b64decode, b64encode
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.dialects.hand_over_record import MOST_BYTES, read_manifest, write_manifest
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed

RECORD = {"metadata": {"name": "handover-uid-1", "namespace": "carrel", "uid": "uid-2"}}
POD = {"metadata": {"resourceVersion": "7"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def kept(manifest: dict[str, Any]) -> dict[str, Any]:
    """The Secret with the manifest."""
    secret = write_manifest(manifest, RECORD, POD)
    assert not isinstance(secret, Refusal)
    return secret


def cut_off() -> str:
    packed: str = kept({"kind": "Pod"})["data"]["successor"]
    return b64encode(b64decode(packed)[:-3]).decode()


def test_a_secret_belongs_to_its_record_and_to_one_version_of_the_pod() -> None:
    secret = kept({"kind": "Pod"})

    assert secret["type"] == "carrel.dev/handover"
    assert secret["metadata"] == {
        "name": "handover-uid-2-7",
        "namespace": "carrel",
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "handover-uid-1", "uid": "uid-2"}],
    }


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_kept_is_read(manifest: dict[str, Any]) -> None:
    assert read_manifest(kept(manifest)) == manifest


@pytest.mark.parametrize(
    "text",
    ["", "no base64!", b64encode(b"not compressed").decode(), cut_off()],
    ids=["empty", "not base64", "not compressed", "cut off"],
)
def test_what_cannot_be_read_is_malformed_and_not_quoted(text: str) -> None:
    with pytest.raises(Malformed) as malformed:
        read_manifest({"metadata": {"name": "handover-1"}, "data": {"successor": text}})
    assert "Secret handover-1" in str(malformed.value)
    assert not text or text not in str(malformed.value)


def test_what_would_fill_the_memory_is_not_unpacked() -> None:
    bomb = kept({"name": "x" * 20_000_000})
    with pytest.raises(Malformed):
        read_manifest(bomb)


def test_what_no_secret_can_hold_is_refused_with_its_size() -> None:
    refused = write_manifest({"name": Random(0).randbytes(MOST_BYTES).hex()}, RECORD, POD)
    assert isinstance(refused, Refusal)
    assert f"bytes compressed, {MOST_BYTES:,} are possible" in refused.reason
