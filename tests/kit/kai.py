"""KAI's own kinds, as far as tests need them. A cluster has them only if KAI is installed."""

from typing import Any

POD_GROUP_KIND: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.run.ai"},
    "spec": {
        "group": "scheduling.run.ai",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
        "versions": [
            {
                "name": "v2alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


def a_pod_group(name: str, min_member: int = 0, **spec: Any) -> dict[str, Any]:
    """`spec`: `minSubGroup=2`, `subGroups=[…]`."""
    members = {"minMember": min_member} if min_member else {}
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {**members, "queue": "team", **spec},
    }
