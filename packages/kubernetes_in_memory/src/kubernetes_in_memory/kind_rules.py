"""The rules of each kind, as a table: its defaults and its checks.

Defaults may change the tree that they get. Checks report everything that is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes_in_memory import built_in_rules as built_in
from kubernetes_in_memory import crds, event_rules, pods
from kubernetes_in_memory import device_rules as devices
from kubernetes_in_memory import volume_rules as volumes
from kubernetes_in_memory.causes import Cause
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.object_validation import apply_defaults, validate

Json = dict[str, Any]


def _as_it_is(tree: Json) -> Json:
    return tree


def _fine(tree: Json, live: Json | None) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True)
class KindRules:
    default: Callable[[Json], Json] = _as_it_is
    check: Callable[[Json, Json | None], list[Cause]] = _fine
    """Called with the new tree and the live one (None on create)."""
    needs_version: bool = False
    """An update (PUT) has to name the resourceVersion that it replaces."""
    creates_on_update: bool = False
    """An update (PUT) of an absent object creates it. Locks need the uid in the body to be safe from that."""


_PLAIN = KindRules()
_RULES: dict[tuple[str, str], KindRules] = {
    ("", "pods"): KindRules(pods.default, pods.check),
    ("", "namespaces"): KindRules(built_in.default_namespace),
    ("", "nodes"): KindRules(built_in.default_node),
    ("", "secrets"): KindRules(built_in.default_secret, built_in.check_secret),
    ("", "configmaps"): KindRules(check=built_in.check_config_map),
    ("", "events"): KindRules(check=event_rules.check, creates_on_update=True),
    ("events.k8s.io", "events"): KindRules(check=event_rules.check_of_events_group, creates_on_update=True),
    ("", "services"): KindRules(built_in.default_service, built_in.check_service),
    ("", "replicationcontrollers"): KindRules(
        volumes.default_controller, volumes.requires("spec.selector", "spec.template")
    ),
    ("", "persistentvolumeclaims"): KindRules(
        volumes.default_claim, volumes.requires("spec.accessModes", "spec.resources.requests.storage")
    ),
    ("", "persistentvolumes"): KindRules(volumes.default_volume, volumes.requires("spec.accessModes", "spec.capacity")),
    ("storage.k8s.io", "storageclasses"): KindRules(volumes.default_class, volumes.requires("provisioner")),
    ("storage.k8s.io", "volumeattachments"): KindRules(
        volumes.default_attachment, volumes.requires("spec.attacher", "spec.nodeName")
    ),
    ("storage.k8s.io", "csidrivers"): KindRules(volumes.default_driver),
    ("storage.k8s.io", "csistoragecapacities"): KindRules(check=volumes.requires("storageClassName")),
    ("resource.k8s.io", "resourceclaims"): KindRules(devices.default_claim, devices.check_claim),
    ("resource.k8s.io", "resourceclaimtemplates"): KindRules(devices.default_template, devices.check_template),
    ("resource.k8s.io", "resourceslices"): KindRules(check=volumes.requires("spec.driver", "spec.pool.name")),
    ("resource.k8s.io", "devicetaintrules"): KindRules(check=volumes.requires("spec.taint.effect", "spec.taint.key")),
    ("coordination.k8s.io", "leases"): KindRules(
        check=built_in.check_lease, needs_version=True, creates_on_update=True
    ),
    ("scheduling.k8s.io", "priorityclasses"): KindRules(built_in.default_priority_class, built_in.check_priority_class),
    ("policy", "poddisruptionbudgets"): KindRules(check=built_in.check_disruption_budget, needs_version=True),
    ("apiextensions.k8s.io", "customresourcedefinitions"): KindRules(crds.default, crds.check, needs_version=True),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): KindRules(
        built_in.default_webhooks, built_in.check_webhooks, needs_version=True
    ),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): KindRules(
        built_in.default_webhooks, built_in.check_webhooks, needs_version=True
    ),
}


def rules_of(kind: Kind) -> KindRules:
    return _rules_of_custom(kind) if kind.custom else _RULES.get((kind.group, kind.plural), _PLAIN)


def _rules_of_custom(kind: Kind) -> KindRules:
    schema = kind.schema or {}
    return KindRules(
        lambda tree: apply_defaults(schema, tree), lambda tree, live: validate(schema, tree), needs_version=True
    )
