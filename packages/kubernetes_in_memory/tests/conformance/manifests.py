"""The objects of the scenario, spelled out."""

from typing import Any

Json = dict[str, Any]


def group_of(unique: str) -> str:
    return f"{unique}.example"


def definition(unique: str) -> Json:
    group = group_of(unique)
    properties = {
        "seats": {"type": "integer", "minimum": 1},
        "floor": {"type": "string", "enum": ["ground", "upper"], "default": "ground"},
    }
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "required": ["seats"], "properties": properties},
            "status": {"type": "object", "properties": {"reader": {"type": "string"}}},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"desks.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "desks", "singular": "desk", "kind": "Desk", "listKind": "DeskList"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [{"name": "Seats", "type": "integer", "jsonPath": ".spec.seats"}],
                }
            ],
        },
    }


def desk(unique: str, name: str = "window", **spec: Any) -> Json:
    return {
        "apiVersion": f"{group_of(unique)}/v1",
        "kind": "Desk",
        "metadata": {"name": name, "namespace": unique},
        "spec": {"seats": 1, **spec},
    }


def pod(unique: str, name: str = "train", **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": unique, "labels": {"app": name}, **metadata},
        "spec": {
            "containers": [{"name": "main", "image": "busybox:1.36", "resources": {"limits": {"cpu": "1"}}}],
            # Nobody schedules it, and no controller has to make a ServiceAccount for it.
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
        },
    }


HOLD = "library.example/hold"
