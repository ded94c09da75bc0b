"""What a terminal sends, read as keys."""

import pytest

from carrel.live_screen import keys_in


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        pytest.param("u", ["u"], id="a letter"),
        pytest.param("\x1b[A\x1bOB\x1b[5~q", ["up", "down", "page up", "q"], id="several at once"),
        pytest.param("\x1b", ["escape"], id="the escape key alone"),
        pytest.param("\r\n\x7f", ["enter", "enter", "backspace"], id="keys that end or take back"),
        pytest.param("\x1b[15~\x1b[1;5C\x00\x01", [], id="keys that nothing is done with"),
        pytest.param("ü漢", ["ü", "漢"], id="letters of other languages"),
    ],
)
def test_keys(sent: str, keys: list[str]) -> None:
    assert list(keys_in(sent)) == keys
