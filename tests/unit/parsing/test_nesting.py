"""The limit on nesting is ours, and the same on every Python."""

import json

import pytest

from carrel.parsing.fields import Field
from carrel.parsing.malformed import Malformed
from carrel.parsing.nesting import MOST_LEVELS, is_nested_too_deeply


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * levels + closing * levels


@pytest.mark.parametrize(
    ("text", "too_deeply"),
    [
        pytest.param(b"", False, id="nothing"),
        pytest.param(nested(MOST_LEVELS), False, id="as deep as allowed"),
        pytest.param(nested(MOST_LEVELS + 1), True, id="a level more"),
        pytest.param(b'{"a":' * 300 + b"1" + b"}" * 300, True, id="objects"),
        pytest.param(b"[" * 100_000, True, id="never closed"),
        pytest.param(b"[" + b"[]," * 5000 + b"[]]", False, id="many, beside each other"),
        pytest.param(json.dumps(["[" * 5000, '"[{' * 500, "\\" * 3 + "[" * 500]).encode(), False, id="within strings"),
        pytest.param(json.dumps(['\\"' * 3 + "[", "]\\", "\n["] * 300).encode(), False, id="strings with escapes"),
        pytest.param(json.dumps([["\\", '"'] * 9, "]"]).encode() + nested(201), True, id="after such strings"),
        pytest.param(b'["' + b"[" * 5000, False, id="within a string without an end"),
        pytest.param(b"]" * 500 + b"[" * 100, False, id="closed before it is opened"),
    ],
)
def test_levels_are_counted_outside_strings(text: bytes, too_deeply: bool) -> None:
    assert is_nested_too_deeply(text) is too_deeply


@pytest.mark.parametrize("form", [bytes, bytes.decode])
def test_a_document_that_is_nested_too_deeply_is_malformed(form: type[bytes]) -> None:
    with pytest.raises(Malformed, match="expected JSON that is nested less deeply"):
        Field.parse(form(nested(MOST_LEVELS + 1)), "pod lab/train")
