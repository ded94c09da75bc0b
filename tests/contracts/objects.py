"""Kubernetes objects, spelled out: the smallest that a real API server takes."""

from typing import Any

from carrel.kubernetes.cluster import Json
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": {"colour": "red"} if data is None else data,
    }


def pod(name: str, *, spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "containers": [{"name": "main", "image": "busybox"}],
            # Where no controller makes ServiceAccounts and their tokens, a pod that wants one is refused.
            "automountServiceAccountToken": False,
            # Nobody schedules it behind the test's back.
            "schedulerName": "nobody",
            **(spec or {}),
        },
    }


def lease(name: str, holder: str = "somebody", **metadata: Any) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, **metadata},
        "spec": {"holderIdentity": holder},
    }


def service(name: str, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, **metadata},
        "spec": {"clusterIP": "None", "selector": {"app": name}, "ports": [{"port": 80}]},
    }


def owned_by(owner: Json) -> list[Json]:
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def custom_kind(group: str) -> Resource[Any]:
    return Resource(Object, group, "v1", "desks", "Desk")


def definition_of(kind: Resource[Any]) -> Json:
    """A CRD with a schema, a default, an enum and a status subresource."""
    spec_schema = {
        "type": "object",
        "required": ["seats"],
        "properties": {
            "seats": {"type": "integer", "minimum": 1},
            "floor": {"type": "string", "enum": ["ground", "upper"], "default": "ground"},
            "lamps": {"type": "array", "items": {"type": "string"}},
        },
    }
    status_schema = {"type": "object", "properties": {"reader": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec_schema, "status": status_schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "singular": "desk", "kind": kind.kind, "listKind": "DeskList"},
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def desk(kind: Resource[Any], name: str, spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, **metadata},
        "spec": {"seats": 1} if spec is None else spec,
    }
