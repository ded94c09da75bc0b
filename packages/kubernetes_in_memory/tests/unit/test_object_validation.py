"""Custom resources are pruned, defaulted and checked as a real API server does it, with its words."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubernetes_in_memory.object_validation import apply_defaults, prune, validate

Json = dict[str, Any]

CLAIM: Json = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["devices"],
            "properties": {
                "devices": {
                    "type": "object",
                    "required": ["count"],
                    "properties": {
                        "count": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 16},
                        "policy": {"type": "string", "enum": ["contiguous", "spread"], "default": "contiguous"},
                        "ids": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"},
                    },
                },
                "port": {"x-kubernetes-int-or-string": True},
                "since": {"type": "string", "format": "date-time"},
                "note": {"type": "string", "nullable": True, "maxLength": 5, "minLength": 2, "pattern": "^[a-z]+$"},
                "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "multipleOf": 0.1},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "limits": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
                "topology": {
                    "type": "object",
                    "default": {},
                    "properties": {"island": {"type": "string", "default": "any"}},
                },
                "mounts": {
                    "type": "array",
                    "maxItems": 3,
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "mode": {"type": "string", "default": "ro"}},
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "template": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "x-kubernetes-preserve-unknown-fields": True,
                },
            },
        },
    },
}


def claim(**spec: Any) -> Json:
    return {
        "apiVersion": "lab.example/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "c", "labels": {"a": "b"}},
        "spec": {"devices": {"count": 1}, **spec},
    }


@pytest.mark.parametrize(
    ("spec", "field", "reason", "message"),
    [
        pytest.param(
            {"devices": {}}, "spec.devices.count", "FieldValueRequired", "Required value", id="a required field"
        ),
        pytest.param(
            {"devices": {"count": "two"}},
            "spec.devices.count",
            "FieldValueTypeInvalid",
            'Invalid value: "string": spec.devices.count in body must be of type integer: "string"',
            id="a wrong type",
        ),
        pytest.param(
            {"devices": {"count": True}},
            "spec.devices.count",
            "FieldValueTypeInvalid",
            'Invalid value: "boolean": spec.devices.count in body must be of type integer: "boolean"',
            id="true is not one",
        ),
        pytest.param(
            {"devices": {"count": 1, "policy": "x"}},
            "spec.devices.policy",
            "FieldValueNotSupported",
            'Unsupported value: "x": supported values: "contiguous", "spread"',
            id="not in the enum",
        ),
        pytest.param(
            {"devices": {"count": 0}},
            "spec.devices.count",
            "FieldValueInvalid",
            "Invalid value: 0: spec.devices.count in body should be greater than or equal to 1",
            id="below the minimum",
        ),
        pytest.param(
            {"devices": {"count": 17}},
            "spec.devices.count",
            "FieldValueInvalid",
            "Invalid value: 17: spec.devices.count in body should be less than or equal to 16",
            id="above the maximum",
        ),
        pytest.param(
            {"ratio": 0},
            "spec.ratio",
            "FieldValueInvalid",
            "Invalid value: 0: spec.ratio in body should be greater than 0",
            id="at an exclusive minimum",
        ),
        pytest.param(
            {"ratio": 0.25},
            "spec.ratio",
            "FieldValueInvalid",
            "Invalid value: 0.25: spec.ratio in body should be a multiple of 0.1",
            id="not a multiple",
        ),
        pytest.param(
            {"note": "a"},
            "spec.note",
            "FieldValueInvalid",
            'Invalid value: "a": spec.note in body should be at least 2 chars long',
            id="too short",
        ),
        pytest.param(
            {"note": "abcdef"}, "spec.note", "FieldValueTooLong", "Too long: must have at most 5 bytes", id="too long"
        ),
        pytest.param(
            {"note": "ab1"},
            "spec.note",
            "FieldValueInvalid",
            "Invalid value: \"ab1\": spec.note in body should match '^[a-z]+$'",
            id="not the pattern",
        ),
        pytest.param(
            {"note": "ab\n"},
            "spec.note",
            "FieldValueInvalid",
            "Invalid value: \"ab\\n\": spec.note in body should match '^[a-z]+$'",
            id="the end of a pattern is the very end",
        ),
        pytest.param(
            {"since": "yesterday"},
            "spec.since",
            "FieldValueTypeInvalid",
            'Invalid value: "yesterday": spec.since in body must be of type date-time: "yesterday"',
            id="not a date-time",
        ),
        pytest.param(
            {"port": True},
            "spec.port",
            "FieldValueTypeInvalid",
            'Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"',
            id="neither a number nor a text",
        ),
        pytest.param(
            {"limits": {"a": "x"}},
            "spec.limits.a",
            "FieldValueTypeInvalid",
            'Invalid value: "string": spec.limits.a in body must be of type integer: "string"',
            id="a wrong type behind a free key",
        ),
        pytest.param(
            {"limits": {"a": 1, "b": 1, "c": 1}},
            "spec.limits",
            "FieldValueInvalid",
            "Invalid value: 2: spec.limits in body should have at most 2 properties",
            id="too many keys",
        ),
        pytest.param(
            {"mounts": [{"name": str(i)} for i in range(4)]},
            "spec.mounts",
            "FieldValueTooMany",
            "Too many: 4: must have at most 3 items",
            id="too many items",
        ),
        pytest.param(
            {"mounts": [{"mode": "rw"}]},
            "spec.mounts[0].name",
            "FieldValueRequired",
            "Required value",
            id="a required field of an element",
        ),
        pytest.param(
            {"mounts": [{"name": "a"}, {"name": "a", "mode": "rw"}]},
            "spec.mounts[1]",
            "FieldValueDuplicate",
            'Duplicate value: {"name":"a"}',
            id="one key twice in a list of kind map",
        ),
        pytest.param(
            {"devices": {"count": 1, "ids": [3, 3]}},
            "spec.devices.ids[1]",
            "FieldValueDuplicate",
            "Duplicate value: 3",
            id="one value twice in a list of kind set",
        ),
        pytest.param(
            {"template": {"kind": "Pod"}},
            "spec.template.apiVersion",
            "FieldValueRequired",
            "Required value: must not be empty",
            id="an embedded object without a version",
        ),
    ],
)
def test_a_wrong_field_is_reported_in_the_wording_of_kubernetes(
    spec: Json, field: str, reason: str, message: str
) -> None:
    causes = validate(CLAIM, claim(**spec))
    assert [(cause.field, cause.reason, cause.message) for cause in causes] == [(field, reason, message)]


def test_all_errors_of_a_value_are_reported_at_once() -> None:
    causes = validate(CLAIM, claim(devices={"policy": "x"}, note="1", since="?"))
    assert {cause.field for cause in causes} == {"spec.devices.count", "spec.devices.policy", "spec.note", "spec.since"}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="the least"),
        pytest.param({"port": 80}, id="an int-or-string as a number"),
        pytest.param({"port": "http"}, id="an int-or-string as a text"),
        pytest.param({"note": None}, id="null where it is allowed"),
        pytest.param({"ratio": 0.3}, id="a decimal multiple"),
        pytest.param({"ratio": 1}, id="an integer is a number"),
        pytest.param({"devices": {"count": 2.0}}, id="a whole number with a point is an integer"),
        pytest.param({"since": "2026-01-02T03:04:05.678Z"}, id="a date-time in UTC"),
        pytest.param({"since": "2026-01-02T03:04:05+02:00"}, id="a date-time with an offset"),
        pytest.param({"free": {"any": [{"thing": 1}]}}, id="unknown fields where they are preserved"),
        pytest.param({"template": {"apiVersion": "v1", "kind": "Pod", "spec": {}}}, id="an embedded object"),
    ],
)
def test_a_right_object_passes(spec: Json) -> None:
    assert validate(CLAIM, claim(**spec)) == []


@pytest.mark.parametrize(
    ("format_", "value", "passes"),
    [
        pytest.param("int32", 2**31, True, id="the server does not look how large an int32 is"),
        pytest.param("date", "2026-02-29", False, id="a day that does not exist"),
        pytest.param("date-time", "2026-02-28T24:00:00Z", False, id="an hour that does not exist"),
        pytest.param("date-time", "2026-02-28 23:00:00Z", False, id="a date-time without its T"),
        pytest.param("byte", "aGk=", True, id="base64"),
        pytest.param("byte", "a!", False, id="not base64"),
        pytest.param("byte", "", False, id="no base64 at all"),
        pytest.param("ipv4", "10.0.0.1", True, id="an IPv4 address"),
        pytest.param("ipv6", "10.0.0.1", False, id="not an IPv6 address"),
        pytest.param("cidr", "10.0.0.0/8", True, id="a network"),
        pytest.param("cidr", "10.0.0.0", False, id="an address is no network"),
        pytest.param("uuid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", True, id="a UUID"),
        pytest.param("colour", "?", True, id="an unknown format asks nothing"),
    ],
)
def test_formats(format_: str, value: Any, passes: bool) -> None:
    assert (validate({"format": format_}, value, "spec.x") == []) is passes


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        pytest.param({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, None, id="one of two"),
        pytest.param(
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"a": 1, "b": 2},
            '"spec" must validate one and only one schema (oneOf). Found 2 valid alternatives',
            id="both of two",
        ),
        pytest.param(
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            '"spec" must validate one and only one schema (oneOf). Found none valid',
            id="none of two",
        ),
        pytest.param(
            {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1}, None, id="any may be both"
        ),
        pytest.param(
            {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            '"spec" must validate at least one schema (anyOf)',
            id="any is not none",
        ),
        pytest.param(
            {"allOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"a": 1},
            '"spec" must validate all the schemas (allOf)',
            id="all is not one",
        ),
        pytest.param({"not": {"required": ["a"]}}, {"a": 1}, '"spec" must not validate the schema (not)', id="not"),
        pytest.param({"not": {"required": ["a"]}}, {}, None, id="not, kept"),
    ],
)
def test_schemas_are_combined(schema: Json, value: Any, message: str | None) -> None:
    causes = validate(schema, value, "spec")
    if message is None:
        assert causes == []
    else:
        assert (causes[0].field, causes[0].message) == ("<nil>", f'Invalid value: "": {message}')


def test_unknown_fields_are_pruned_and_metadata_is_left_alone() -> None:
    body = claim(
        unknown=1, free={"kept": 1}, mounts=[{"name": "a", "gone": 1}], template={"apiVersion": "v1", "kept": 1}
    )
    body["status"] = {"gone": True}
    assert prune(CLAIM, body) == claim(
        free={"kept": 1}, mounts=[{"name": "a"}], template={"apiVersion": "v1", "kept": 1}
    )


def test_below_the_root_apiversion_kind_and_metadata_are_pruned_too() -> None:
    assert prune(CLAIM, claim(devices={"count": 1, "kind": "x", "metadata": {}})) == claim()


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        pytest.param(2**63 - 1, True, id="the largest"),
        pytest.param(-(2**63), True, id="the smallest"),
        pytest.param(2**63, False, id="one more than the largest"),
    ],
)
def test_integers_have_64_bits(value: int, passes: bool) -> None:
    assert (validate({"type": "integer"}, value, "spec.x") == []) is passes


def test_true_is_not_one_of_the_numbers() -> None:
    assert [cause.message for cause in validate({"enum": [0, 1]}, True, "spec.x")] == [
        'Unsupported value: true: supported values: "0", "1"'
    ]


def test_defaults_fill_what_is_missing_at_every_depth() -> None:
    filled = apply_defaults(CLAIM, claim(mounts=[{"name": "a"}, {"name": "b", "mode": "rw"}]))
    assert filled["spec"] == {
        "devices": {"count": 1, "policy": "contiguous"},
        "topology": {"island": "any"},
        "mounts": [{"name": "a", "mode": "ro"}, {"name": "b", "mode": "rw"}],
    }


def test_a_null_counts_as_missing_unless_it_is_allowed() -> None:
    filled = apply_defaults(CLAIM, claim(devices={"count": 1, "policy": None}, note=None, since=None))
    assert filled["spec"]["devices"]["policy"] == "contiguous"
    assert filled["spec"]["note"] is None
    assert "since" not in filled["spec"]


def test_a_default_is_not_shared_between_objects() -> None:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "default": {"list": [1]}}
    schema = {"type": "object", "properties": {"spec": free}}
    first, second = (apply_defaults(schema, {}) for _ in range(2))
    first["spec"]["list"].append(2)
    assert second == {"spec": {"list": [1]}}


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-2, 20), st.text("ab1", max_size=6), st.just({}), st.just([]))
SPECS = st.dictionaries(
    st.sampled_from([*CLAIM["properties"]["spec"]["properties"], "unknown"]),
    LEAVES
    | st.dictionaries(st.sampled_from(["count", "policy", "name", "island"]), LEAVES, max_size=3)
    | st.lists(st.dictionaries(st.sampled_from(["name", "mode", "x"]), LEAVES, max_size=3), max_size=3),
    max_size=5,
)


@given(SPECS)
def test_pruning_twice_is_pruning_once(spec: Json) -> None:
    once = prune(CLAIM, claim(**spec))
    assert prune(CLAIM, once) == once


@given(SPECS)
def test_defaulting_twice_is_defaulting_once(spec: Json) -> None:
    once = apply_defaults(CLAIM, claim(**spec))
    assert apply_defaults(CLAIM, once) == once


@given(SPECS)
def test_pruning_removes_no_reason_to_be_valid(spec: Json) -> None:
    body = apply_defaults(CLAIM, claim(**spec))
    if not validate(CLAIM, body):
        assert validate(CLAIM, prune(CLAIM, body)) == []


@given(SPECS)
def test_defaults_never_break_a_valid_object(spec: Json) -> None:
    if not validate(CLAIM, claim(**spec)):
        assert validate(CLAIM, apply_defaults(CLAIM, claim(**spec))) == []


@given(SPECS)
def test_inputs_are_never_changed(spec: Json) -> None:
    body, schema = claim(**spec), copy.deepcopy(CLAIM)
    before = copy.deepcopy(body)
    validate(schema, apply_defaults(schema, prune(schema, body)))
    assert (body, schema) == (before, CLAIM)
