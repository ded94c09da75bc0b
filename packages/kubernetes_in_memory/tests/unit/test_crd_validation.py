"""Definitions of custom resources are checked as a real API server does it."""

from typing import Any

import pytest

from kubernetes_in_memory.crd_validation import check_schema, merge_keys_of
from packages.kubernetes_in_memory.tests.unit.test_object_validation import CLAIM, Json


def crd(schema: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"name": "gpuclaims.lab.example"},
        "spec": {
            "group": "lab.example",
            "scope": "Namespaced",
            "names": {"plural": "gpuclaims", "kind": "GpuClaim"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": CLAIM if schema is None else schema},
                }
            ],
            **spec,
        },
    }


def test_a_valid_definition_has_no_errors() -> None:
    assert check_schema(crd()) == []


ROOT = "spec.versions[0].schema.openAPIV3Schema"


def field(**schema: Any) -> Json:
    return crd({"type": "object", "properties": {"spec": schema}})


@pytest.mark.parametrize(
    ("definition", "where"),
    [
        pytest.param({**crd(), "metadata": {"name": "claims"}}, "metadata.name", id="a name that is not plural.group"),
        pytest.param(
            crd(group="carrel") | {"metadata": {"name": "gpuclaims.carrel"}}, "spec.group", id="a group without a dot"
        ),
        pytest.param(crd(scope="Global"), "spec.scope", id="an unknown scope"),
        pytest.param(crd(names={"plural": "gpuclaims"}), "spec.names.kind", id="no kind"),
        pytest.param(
            crd(names={"plural": "gpuclaims", "kind": "G", "listKind": "G"}),
            "spec.names.listKind",
            id="one word for kind and list",
        ),
        pytest.param(crd(versions=[]), "spec.versions", id="no version"),
        pytest.param(crd(versions="v1"), "spec.versions", id="versions that are no list"),
        pytest.param(
            crd(versions=[{**crd()["spec"]["versions"][0], "storage": False}]), "spec.versions", id="no storage version"
        ),
        pytest.param(
            crd(versions=[{"name": "v1", "served": True, "storage": True}]),
            "spec.versions[0].schema.openAPIV3Schema",
            id="no schema",
        ),
        pytest.param(crd({"properties": {}}), f"{ROOT}.type", id="no type at the root"),
        pytest.param(crd({"type": "string"}), f"{ROOT}.type", id="a root that is no object"),
        pytest.param(
            crd(
                {
                    "type": "object",
                    "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
                }
            ),
            f"{ROOT}.properties[metadata]",
            id="labels restricted",
        ),
        pytest.param(field(description="x"), f"{ROOT}.properties[spec].type", id="a field without a type"),
        pytest.param(field(type="text"), f"{ROOT}.properties[spec].type", id="an unknown type"),
        pytest.param(field(type=1), f"{ROOT}.properties.spec.type", id="a type that is no text"),
        pytest.param(field(type="array"), f"{ROOT}.properties[spec].items", id="a list without items"),
        pytest.param(field(type="array", items={}), f"{ROOT}.properties[spec].items.type", id="items without a type"),
        pytest.param(
            field(type="object", properties={"a": {"type": "string"}}, additionalProperties={"type": "string"}),
            f"{ROOT}.properties[spec].additionalProperties",
            id="named and free keys at once",
        ),
        pytest.param(
            field(type="object", anyOf=[{"type": "object"}]),
            f"{ROOT}.properties[spec].anyOf[0].type",
            id="structure in an alternative",
        ),
        pytest.param(field(type="string", pattern="("), f"{ROOT}.properties[spec].pattern", id="a broken pattern"),
        pytest.param(
            field(type="string", default=1), f"{ROOT}.properties[spec].default", id="a default of a wrong type"
        ),
        pytest.param(
            field(type="object", default={"a": 1}),
            f"{ROOT}.properties[spec].default",
            id="a default with unknown fields",
        ),
        pytest.param(
            field(type="array", items={"type": "object"}, **{"x-kubernetes-list-type": "map"}),
            f"{ROOT}.properties[spec].x-kubernetes-list-map-keys",
            id="a list of kind map without keys",
        ),
        pytest.param(
            field(type="object", **{"x-kubernetes-list-type": "set"}),
            f"{ROOT}.properties[spec].type",
            id="a list type on an object",
        ),
        pytest.param(
            field(type="array", items={"type": "string"}, uniqueItems=True),
            f"{ROOT}.properties[spec].uniqueItems",
            id="uniqueItems",
        ),
    ],
)
def test_an_invalid_definition_is_reported_with_its_path(definition: Json, where: str) -> None:
    assert where in [cause.field for cause in check_schema(definition)]


def test_int_or_string_may_name_both_types_in_any_of() -> None:
    known = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert check_schema(field(**known)) == []


def test_merge_keys_come_from_list_types() -> None:
    keys = merge_keys_of(CLAIM)
    assert keys.below("spec").below("mounts").apply_keys == ("name",)
    assert keys.below("spec").below("devices").below("ids").apply_set
    assert keys.below("metadata").below("finalizers").apply_set
