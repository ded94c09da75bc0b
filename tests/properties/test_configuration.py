"""Any configuration that can be written can be read again, and so can any change of it."""

from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, get_origin, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.configuration.current import changes
from carrel.configuration.fields import INFO, Info
from carrel.configuration.reading import (
    Unusable,
    as_text,
    content_of,
    every_field,
    leaves,
    may_people_change,
    plain,
    read,
    with_value,
    written,
)
from carrel.configuration.schema import Configuration

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
DEFAULTS = {leaf.path: leaf for leaf in every_field(Configuration())}
PATHS = sorted(DEFAULTS)


def values(hint: Any, info: Info) -> st.SearchStrategy[Any]:
    """Values of a field, as they are in the program."""
    if get_origin(hint) is tuple:
        return st.lists(WORDS, max_size=3).map(tuple)
    if get_origin(hint) is not None:
        return st.dictionaries(WORDS, WORDS, max_size=3)
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if hint is timedelta:
        least, most = info.least or timedelta(), info.most or timedelta(days=999_999)
        whole = st.integers(int(least.total_seconds()), int(most.total_seconds()))
        return whole.map(lambda seconds: timedelta(seconds=seconds))
    if hint is int:
        return st.integers(info.least if info.least is not None else -(10**9), info.most or 10**9)
    return st.booleans() if hint is bool else st.one_of(st.just(""), WORDS)


def sections(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(
        kind,
        **{
            each.name: sections(hints[each.name])
            if is_dataclass(hints[each.name])
            else st.one_of(st.just(getattr(kind(), each.name)), values(hints[each.name], each.metadata[INFO]))
            for each in fields(kind)
        },
    )


CONFIGURATIONS = sections(Configuration)
ANY_YAML = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), WORDS, st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=8,
)

PLAIN = st.one_of(st.booleans(), st.integers(), WORDS, st.lists(WORDS, max_size=3))


@settings(max_examples=25)
@given(CONFIGURATIONS)
def test_what_was_written_is_read_as_the_same(configuration: Configuration) -> None:
    """Whatever words are in it: if it is refused, only because values contradict each other."""
    text = written(configuration)
    try:
        made = read(text)
    except Unusable as unusable:
        assert not [each for each in unusable.mistakes if "no YAML" in each or "no field" in each]
        return
    assert made == configuration
    assert written(made) == text
    assert list(changes(configuration, made)) == []


@settings(max_examples=25)
@given(CONFIGURATIONS)
def test_every_value_survives_the_file_by_itself(configuration: Configuration) -> None:
    content = content_of(written(configuration))
    different = {leaf.path: leaf.value for leaf in every_field(configuration) if leaf.value != leaf.default}
    assert dict(leaves(content)) == different


@given(st.lists(st.tuples(st.sampled_from(PATHS), PLAIN), max_size=5))
def test_a_value_that_was_set_and_taken_back_leaves_no_trace(given_: list[tuple[str, Any]]) -> None:
    content: dict[str, Any] = {}
    for path, value in given_:
        before, content = content, with_value(content, path, value)
        if path not in dict(leaves(before)):
            assert with_value(content, path, None) == before
        assert content_of(as_text(content)) == content
    for path, _ in given_:
        content = with_value(content, path, None)
    assert content == {}


@given(st.sampled_from(PATHS), ANY_YAML)
def test_any_value_of_any_field_is_taken_or_refused_by_the_name_of_the_field(path: str, value: Any) -> None:
    content = with_value({}, path, value)
    try:
        made = read(as_text(content))
    except Unusable as unusable:
        assert any(path.split(".")[0] in each for each in unusable.mistakes)
    else:
        changed = [leaf.path for leaf in every_field(made) if leaf.value != leaf.default]
        assert changed in ([], [path])


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for name in ("given", "changes"):
        try:
            made = read(text if name == "given" else "{}", text if name == "changes" else "")
        except Unusable as unusable:
            assert unusable.mistakes
        else:
            assert name == "given" or all(may_people_change(each.path) for each in changes(Configuration(), made))


@given(st.integers(0, 3650 * 86_400))
def test_a_length_of_time_is_written_exactly(seconds: int) -> None:
    length = timedelta(seconds=seconds)
    made = read(f"tiers: {{waitBeforeCpu: {plain(length)}}}")
    assert made.tiers.wait_before_cpu == length
