"""Quantities, as Kubernetes reads them."""

from fractions import Fraction

import pytest

from carrel.kubernetes.objects.quantity import quantity, whole_quantity
from carrel.parsing import Malformed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("8138", 8138),
        ("+1", 1),
        ("-1", -1),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("15e-1", Fraction(3, 2)),
        ("1k", 1000),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("500m", Fraction(1, 2)),
        ("1u", Fraction(1, 10**6)),
        ("5n", Fraction(5, 10**9)),
        ("1Ki", 2**10),
        ("1.5Mi", 3 * 2**19),
        ("16Gi", 2**34),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("7Ei", 7 * 2**60),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_quantities_are_read_exactly(text: str, expected: Fraction) -> None:
    assert quantity(text, "pod lab/train", "limits") == expected


@pytest.mark.parametrize(("text", "expected"), [("0.1n", Fraction(1, 10**9)), ("-0.1n", Fraction(-1, 10**9))])
def test_what_is_finer_than_a_billionth_is_rounded_away_from_zero(text: str, expected: Fraction) -> None:
    assert quantity(text, "pod lab/train", "limits") == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("2^63", id="a power"),
        pytest.param("9223372036854775808", id="2^63 spelled out"),
        pytest.param("-9223372036854775808", id="minus 2^63"),
        pytest.param("8Ei", id="2^63 in exbi"),
        pytest.param("1e999", id="an exponent out of this world"),
        pytest.param("1e9999", id="a long exponent"),
        pytest.param(" 1", id="a space before"),
        pytest.param("1 ", id="a space after"),
        pytest.param("1 Gi", id="a space between"),
        pytest.param("1\n", id="a line's end"),
        pytest.param("1K", id="big K is not a suffix"),
        pytest.param("1ki", id="small k is not binary"),
        pytest.param("1mi", id="small m is not binary"),
        pytest.param("1e", id="an exponent without its number"),
        pytest.param("e3", id="an exponent alone"),
        pytest.param("1e3Gi", id="two suffixes"),
        pytest.param("1.2.3", id="two points"),
        pytest.param(".", id="a point alone"),
        pytest.param("--1", id="two signs"),
        pytest.param("0x10", id="hex"),
        pytest.param("1_000", id="an underscore"),
        pytest.param("٣", id="a digit of another script"),
        pytest.param("NaN", id="not a number"),
        pytest.param("Inf", id="infinity"),
        pytest.param("1" * 65, id="a long story"),
    ],
)
def test_other_text_is_malformed_and_the_message_names_it(text: str) -> None:
    with pytest.raises(Malformed, match=r"pod lab/train: spec\.limits is .*expected a quantity"):
        quantity(text, "pod lab/train", "spec.limits")


@pytest.mark.parametrize(
    ("text", "expected"), [("2", 2), ("1e3", 1000), ("1000m", 1), ("1Ki", 1024), ("0", 0), ("0m", 0)]
)
def test_extended_resources_are_whole_however_they_are_spelled(text: str, expected: int) -> None:
    assert whole_quantity(text, "pod lab/train", "limits") == expected


@pytest.mark.parametrize("text", ["0.5", "-1", "1m", "1n"])
def test_a_part_of_an_extended_resource_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="a whole number, 0 or more"):
        whole_quantity(text, "pod lab/train", "limits")
