"""The text of others is safe to print, and otherwise as it was."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.parsing.printable import printable, printable_lines, simpler

CASES = [
    pytest.param("lab/train-7 – 8 138 MiB, Åsa, 東京", "lab/train-7 – 8 138 MiB, Åsa, 東京", id="ordinary text"),
    pytest.param("a\nlevel=ERROR", "a\\nlevel=ERROR", id="a line break"),
    pytest.param("a\r\x85\u2028b", "a\\r\\x85\\u2028b", id="other line breaks"),
    pytest.param("\x1b[2J\x9b31m", "\\x1b[2J\\x9b31m", id="escape sequences of terminals"),
    pytest.param("evil\u202egpj.exe\u2066", "evil\\u202egpj.exe\\u2066", id="reversed order"),
    pytest.param("a\u200bb\ufeff", "a\\u200bb\\ufeff", id="characters without width"),
    pytest.param("\ud800", "\\ud800", id="half of a character"),
]


@pytest.mark.parametrize(("text", "shown"), CASES)
def test_text_of_others(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_may_be_kept() -> None:
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


@given(st.text())
def test_what_is_shown_is_printable_and_shown_twice_it_is_the_same(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown


@pytest.mark.parametrize(
    ("text", "written"),
    [
        pytest.param("lab/train-7 –", "lab/train-7 -", id="a character that has a simpler form"),
        pytest.param("▁▂▃▄▅▆▇█ ✗ ✓", "_.-:=+*# x +", id="bars and signs"),
        pytest.param("Ада 漢\udc80", "??? ??", id="others, and what no encoding has: each a question mark"),
        pytest.param("plain", "plain", id="nothing to do"),
    ],
)
def test_what_an_encoding_lacks_is_written_in_as_many_simpler_characters(text: str, written: str) -> None:
    codecs.register_error("simpler", simpler)
    assert text.encode("ascii", "simpler").decode() == written
    assert len(written) == len(text)
