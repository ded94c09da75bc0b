"""The manifest of a successor, as it is kept in a Secret."""

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.dialects.successor_manifest import manifest_name, pack, read_manifest, write_manifest
from carrel.parsing import Malformed

RECORD = {"metadata": {"name": "handover-uid-1", "namespace": "carrel", "uid": "uid-2"}}
POD = {"metadata": {"resourceVersion": "7"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def test_a_secret_belongs_to_its_record_and_to_one_version_of_the_pod() -> None:
    secret = write_manifest(manifest_name(RECORD, POD), pack({"kind": "Pod"}), RECORD)

    assert secret["type"] == "carrel.dev/handover"
    assert secret["metadata"] == {
        "name": "handover-uid-2-7",
        "namespace": "carrel",
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "handover-uid-1", "uid": "uid-2"}],
    }


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_kept_is_read(manifest: dict[str, Any]) -> None:
    assert read_manifest(write_manifest("handover-1", pack(manifest), RECORD)) == manifest


@pytest.mark.parametrize(
    "text",
    ["", "no base64!", b64encode(b"not compressed").decode(), b64encode(pack({"kind": "Pod"})[:-3]).decode()],
    ids=["empty", "not base64", "not compressed", "cut off"],
)
def test_what_cannot_be_read_is_malformed_and_not_quoted(text: str) -> None:
    with pytest.raises(Malformed) as malformed:
        read_manifest({"metadata": {"name": "handover-1"}, "data": {"successor": text}})
    assert "Secret handover-1" in str(malformed.value)
    assert not text or text not in str(malformed.value)


def test_what_would_fill_the_memory_is_not_unpacked() -> None:
    bomb = pack({"name": "x" * 20_000_000})
    with pytest.raises(Malformed):
        read_manifest(write_manifest("handover-1", bomb, RECORD))
