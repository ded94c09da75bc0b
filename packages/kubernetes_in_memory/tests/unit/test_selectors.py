"""Label and field selectors mean what they mean to a real API server."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.selectors import FieldRequirement, FieldSelector, LabelSelector, label_selector_of

LABELS = {"app": "train", "tier": "booked", "rank": "3", "empty": "", "lab.example/node": "n1"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        pytest.param("", True, id="no requirement selects everything"),
        pytest.param("app=train", True, id="equal"),
        pytest.param("app==train", True, id="equal, written twice"),
        pytest.param("app = train , tier=booked", True, id="spaces are allowed and all must hold"),
        pytest.param("app=train,tier=free", False, id="one of two fails"),
        pytest.param("other=train", False, id="equal on a missing label"),
        pytest.param("app!=train", False, id="not equal"),
        pytest.param("other!=train", True, id="a missing label is not equal"),
        pytest.param("app in (serve, train)", True, id="in"),
        pytest.param("app in (serve)", False, id="not in the set"),
        pytest.param("other in ()", False, id="a missing label is not the empty value"),
        pytest.param("empty in ()", True, id="an empty set holds the empty value"),
        pytest.param("empty=", True, id="equal to the empty value"),
        pytest.param("empty in (,x)", True, id="an empty value between commas"),
        pytest.param("app notin (serve,train)", False, id="notin"),
        pytest.param("other notin (serve,train)", True, id="a missing label is in no set"),
        pytest.param("app", True, id="exists"),
        pytest.param("other", False, id="does not exist, asked to exist"),
        pytest.param("!other", True, id="asked not to exist"),
        pytest.param("!app", False, id="exists, asked not to exist"),
        pytest.param("lab.example/node=n1", True, id="a key with a prefix"),
        pytest.param("rank>2", True, id="greater than"),
        pytest.param("rank<3", False, id="less than"),
        pytest.param("app>2", False, id="a word is not greater than a number"),
        pytest.param("!in,!notin", True, id="operators are words where a key is expected"),
        pytest.param("app notin (in)", True, id="operators are words where a value is expected"),
    ],
)
def test_a_label_selector_matches(text: str, matches: bool) -> None:
    assert LabelSelector.parse(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(",", id="only a comma"),
        pytest.param("app=train,", id="a comma at the end"),
        pytest.param("app train", id="no operator"),
        pytest.param("app in train", id="a set without parentheses"),
        pytest.param("app in (train", id="a parenthesis left open"),
        pytest.param("app in (a b)", id="values without a comma"),
        pytest.param("=train", id="no key"),
        pytest.param("!app=train", id="not and equal at once"),
        pytest.param("app=a=b", id="two operators"),
        pytest.param("app=-train", id="a value that is no label value"),
        pytest.param("-app", id="a key that is no label key"),
        pytest.param("a/b/c", id="two slashes"),
        pytest.param("Upper.Case/a", id="a prefix that is no DNS name"),
        pytest.param("/a", id="an empty prefix"),
        pytest.param(f"app={'x' * 64}", id="a value that is too long"),
        pytest.param("rank>high", id="a bound that is no number"),
        pytest.param("@!#", id="line noise"),
    ],
)
def test_a_label_selector_that_cannot_be_read_is_malformed(text: str) -> None:
    with pytest.raises(MalformedInput):
        LabelSelector.parse(text)


def test_a_malformed_label_selector_says_where() -> None:
    with pytest.raises(MalformedInput, match=r"label selector 'app in train': word 3 is 'train'; expected '\('"):
        LabelSelector.parse("app in train")


@pytest.mark.parametrize(
    ("document", "matches"),
    [
        pytest.param(None, False, id="no selector selects nothing"),
        pytest.param({}, True, id="an empty selector selects everything"),
        pytest.param({"matchLabels": {"app": "train"}}, True, id="matchLabels"),
        pytest.param({"matchLabels": {"app": "train", "other": ""}}, False, id="an empty value is not a missing label"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "In", "values": ["train"]}]}, True, id="In"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["train"]}]}, False, id="NotIn"
        ),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True, id="Exists"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False, id="DoesNotExist"),
        pytest.param(
            {"matchLabels": {"app": "train"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
            False,
            id="both parts must hold",
        ),
    ],
)
def test_the_selector_of_a_spec_matches(document: dict[str, object] | None, matches: bool) -> None:
    assert label_selector_of(document).matches(LABELS) is matches


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"matchLabels": ["app"]}, id="labels as a list"),
        pytest.param({"matchLabels": {"app": 1}}, id="a number as a value"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}, id="an unknown operator"
        ),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "In"}]}, id="In without values"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}, id="Exists with values"
        ),
        pytest.param({"matchExpressions": [{"operator": "Exists"}]}, id="no key"),
    ],
)
def test_the_selector_of_a_spec_that_cannot_be_read_is_malformed(document: dict[str, object]) -> None:
    with pytest.raises(MalformedInput):
        label_selector_of(document)


FIELDS = {"metadata.name": "p1", "status.phase": "Running", "note": "a,b=c\\d"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        pytest.param("", True, id="no requirement selects everything"),
        pytest.param("metadata.name=p1", True, id="equal"),
        pytest.param("metadata.name==p1", True, id="equal, written twice"),
        pytest.param("metadata.name=p1,status.phase!=Running", False, id="all must hold"),
        pytest.param("status.phase!=Failed,status.phase!=Succeeded", True, id="not equal, twice"),
        pytest.param("spec.nodeName=", True, id="a missing field reads as empty"),
        pytest.param("spec.nodeName!=", False, id="a missing field is not set"),
        pytest.param("note=a\\,b\\=c\\\\d", True, id="escapes"),
        pytest.param(",metadata.name=p1,", True, id="empty terms ask nothing"),
    ],
)
def test_a_field_selector_matches(text: str, matches: bool) -> None:
    assert FieldSelector.parse(text).matches(lambda field: FIELDS.get(field, "")) is matches


def test_a_field_selector_tells_which_fields_it_needs() -> None:
    assert FieldSelector.parse("spec.nodeName=n1,status.phase!=Failed").fields == ("spec.nodeName", "status.phase")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("metadata.name", id="no operator"),
        pytest.param("metadata.name=a=b", id="an equals sign that is not escaped"),
        pytest.param("metadata.name=a\\b", id="an unknown escape"),
        pytest.param("metadata.name=a\\", id="an escape of nothing"),
        pytest.param("metadata.name in (a)", id="a set"),
    ],
)
def test_a_field_selector_that_cannot_be_read_is_malformed(text: str) -> None:
    with pytest.raises(MalformedInput):
        FieldSelector.parse(text)


LABEL_KEYS = st.sampled_from(["app", "tier", "in", "notin", "lab.example/node"])
LABEL_VALUES = st.text(string.ascii_letters + string.digits, max_size=4)
EXPRESSIONS = st.one_of(
    st.fixed_dictionaries(
        {
            "key": LABEL_KEYS,
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(LABEL_VALUES, min_size=1, max_size=3),
        }
    ),
    st.fixed_dictionaries({"key": LABEL_KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
)


@given(st.lists(EXPRESSIONS, max_size=4))
def test_a_label_selector_reads_back_what_it_writes(expressions: list[dict[str, object]]) -> None:
    selector = label_selector_of({"matchExpressions": expressions})
    assert LabelSelector.parse(str(selector)) == selector


@given(LABEL_KEYS, LABEL_VALUES, st.dictionaries(LABEL_KEYS, LABEL_VALUES))
def test_not_equal_is_the_opposite_of_equal(key: str, value: str, labels: dict[str, str]) -> None:
    equal, unequal = LabelSelector.parse(f"{key}={value}"), LabelSelector.parse(f"{key}!={value}")
    assert equal.matches(labels) is not unequal.matches(labels)


@given(
    st.lists(
        st.builds(
            FieldRequirement,
            field=st.sampled_from(["metadata.name", "status.phase"]),
            value=st.text(",=\\!ab\n", max_size=6),
            equal=st.booleans(),
        ),
        max_size=3,
    )
)
def test_a_field_selector_reads_back_what_it_writes(requirements: list[FieldRequirement]) -> None:
    selector = FieldSelector(tuple(requirements))
    assert FieldSelector.parse(str(selector)) == selector


@given(st.text(st.sampled_from(",=!()<>\\ ain\t"), max_size=12))
def test_any_text_is_a_selector_or_malformed(text: str) -> None:
    for parse in (LabelSelector.parse, FieldSelector.parse):
        try:
            parse(text)
        except MalformedInput:
            continue
