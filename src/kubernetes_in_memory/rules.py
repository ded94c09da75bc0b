"""What holds for one kind only: its defaults and its checks, as a table.

Defaults get a tree that belongs to the write that is going on, and may change it. Checks report all that is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes_in_memory import built_in_rules as built_in
from kubernetes_in_memory import crds, event_rules, pods
from kubernetes_in_memory import volume_rules as volumes
from kubernetes_in_memory.causes import Cause
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.schema import apply_defaults, validate

Json = dict[str, Any]


def _as_it_is(tree: Json) -> Json:
    return tree


def _fine(tree: Json, live: Json | None) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True)
class Rules:
    default: Callable[[Json], Json] = _as_it_is
    check: Callable[[Json, Json | None], list[Cause]] = _fine
    """Called with the new tree and the live one (None on create)."""
    needs_version: bool = False
    """An update (PUT) has to name the resourceVersion that it replaces."""
    creates_on_update: bool = False
    """An update (PUT) of what is not there makes it. A surprise for locks: the uid in the body protects from it."""


_PLAIN = Rules()
_RULES: dict[tuple[str, str], Rules] = {
    ("", "pods"): Rules(pods.default, pods.check),
    ("", "namespaces"): Rules(built_in.default_namespace),
    ("", "nodes"): Rules(built_in.default_node),
    ("", "secrets"): Rules(built_in.default_secret, built_in.check_secret),
    ("", "configmaps"): Rules(check=built_in.check_config_map),
    ("", "events"): Rules(check=event_rules.check, creates_on_update=True),
    ("events.k8s.io", "events"): Rules(check=event_rules.check_of_events_group, creates_on_update=True),
    ("", "services"): Rules(built_in.default_service, built_in.check_service),
    ("", "replicationcontrollers"): Rules(
        volumes.default_controller, volumes.requires("spec.selector", "spec.template")
    ),
    ("", "persistentvolumeclaims"): Rules(
        volumes.default_claim, volumes.requires("spec.accessModes", "spec.resources.requests.storage")
    ),
    ("", "persistentvolumes"): Rules(volumes.default_volume, volumes.requires("spec.accessModes", "spec.capacity")),
    ("storage.k8s.io", "storageclasses"): Rules(volumes.default_class, volumes.requires("provisioner")),
    ("storage.k8s.io", "volumeattachments"): Rules(
        volumes.default_attachment, volumes.requires("spec.attacher", "spec.nodeName")
    ),
    ("storage.k8s.io", "csidrivers"): Rules(volumes.default_driver),
    ("storage.k8s.io", "csistoragecapacities"): Rules(check=volumes.requires("storageClassName")),
    ("resource.k8s.io", "resourceclaims"): Rules(volumes.default_resource_claim),
    ("resource.k8s.io", "resourceslices"): Rules(check=volumes.requires("spec.driver", "spec.pool.name")),
    ("resource.k8s.io", "devicetaintrules"): Rules(check=volumes.requires("spec.taint.effect", "spec.taint.key")),
    ("coordination.k8s.io", "leases"): Rules(check=built_in.check_lease, needs_version=True, creates_on_update=True),
    ("scheduling.k8s.io", "priorityclasses"): Rules(built_in.default_priority_class, built_in.check_priority_class),
    ("policy", "poddisruptionbudgets"): Rules(check=built_in.check_disruption_budget, needs_version=True),
    ("apiextensions.k8s.io", "customresourcedefinitions"): Rules(crds.default, crds.check, needs_version=True),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): Rules(
        built_in.default_webhooks, built_in.check_webhooks, needs_version=True
    ),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): Rules(
        built_in.default_webhooks, built_in.check_webhooks, needs_version=True
    ),
}


def rules_of(kind: Kind) -> Rules:
    return _rules_of_custom(kind) if kind.custom else _RULES.get((kind.group, kind.plural), _PLAIN)


def _rules_of_custom(kind: Kind) -> Rules:
    schema = kind.schema or {}
    return Rules(
        lambda tree: apply_defaults(schema, tree), lambda tree, live: validate(schema, tree), needs_version=True
    )
