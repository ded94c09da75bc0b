"""What is wrong in a document, in words that somebody can act on."""

from typing import Annotated

import msgspec
import pytest

from carrel.parsing import Malformed
from carrel.parsing.fields import whole_number
from carrel.parsing.validation import malformed


class Document(msgspec.Struct):
    count: int = 0
    share: float = 0
    gpus: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(b'{"gpus": 0}', "gpus is another number; expected a whole number, 1 or more", id="below"),
        pytest.param(b'{"gpus": 17}', "gpus is another number; expected a whole number, 16 at most", id="above"),
        pytest.param(b'{"count": 1e400}', "count is another number; expected a smaller number", id="a huge exponent"),
        pytest.param(b'{"share": 1e999}', "share is another number; expected a smaller number", id="no float"),
        pytest.param(
            b'{"count": %s}' % (b"9" * 5_000), "count is another number; expected a smaller number", id="many digits"
        ),
        pytest.param(b'{"count": 1.5}', "count is a number; expected a whole number", id="not whole"),
        pytest.param(b'{"count": "1"}', "count is a text; expected a whole number", id="text"),
    ],
)
def test_a_number_out_of_range_is_explained_in_a_sentence(text: bytes, words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as found:
        msgspec.json.decode(text, type=Document)
    assert str(malformed("the report", found.value)) == f"the report: {words}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0", "a whole number, 1 or more", id="too small"),
        pytest.param("-1", "a whole number, 1 or more", id="a sign"),
        pytest.param("9223372036854775808", "a smaller number, at most 2⁶³−1", id="too large by one"),
        pytest.param("9" * 30, "a smaller number, at most 2⁶³−1", id="many digits"),
    ],
)
def test_a_number_as_text_says_which_end_of_the_range_it_is_beyond(text: str, expected: str) -> None:
    with pytest.raises(Malformed) as found:
        whole_number(text, "pod lab/train", "annotations['gpu-memory']", at_least=1)
    assert found.value.expected == expected
