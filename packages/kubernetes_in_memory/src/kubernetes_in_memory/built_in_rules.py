"""Defaults and checks of the built-in kinds other than pods: what clients rely on, and what a user would notice."""

import base64
import binascii
import re
from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.causes import Cause, duplicate, prohibited, required, unsupported, wrong
from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.objects import is_qualified
from kubernetes_in_memory.selectors import label_selector_of

Json = dict[str, Any]

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_MOST_DATA = 1024 * 1024
HIGHEST_USER_PRIORITY = 1_000_000_000
OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")


def default_namespace(namespace: Json) -> Json:
    metadata = namespace["metadata"]
    if "name" in metadata:
        metadata["labels"] = {**metadata.get("labels", {}), "kubernetes.io/metadata.name": metadata["name"]}
    if not metadata.get("deletionTimestamp"):
        namespace.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        namespace.setdefault("status", {}).setdefault("phase", "Active")
    return namespace


def default_node(node: Json) -> Json:
    node.setdefault("spec", {})
    node_status = node.setdefault("status", {})
    if "capacity" in node_status:
        node_status.setdefault("allocatable", node_status["capacity"])
    return node


def default_secret(secret: Json) -> Json:
    """`stringData` is a way to write `data`; it is never read back."""
    secret.setdefault("type", "Opaque")
    plain = secret.pop("stringData", {})
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        secret["data"] = {**secret.get("data", {}), **encoded}
    return secret


def check_secret(secret: Json, live: Json | None) -> list[Cause]:
    for key, value in secret.get("data", {}).items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise status.bad_request(
                f'Secret in version "v1" cannot be handled as a Secret: data[{key}]: illegal base64 data '
                "(plain text belongs into stringData)"
            ) from None
    causes = _data_causes(secret, live)
    if live is not None and secret["type"] != live["type"]:
        causes.append(wrong("type", secret["type"], "field is immutable"))
    return causes


def check_config_map(config_map: Json, live: Json | None) -> list[Cause]:
    causes = _data_causes(config_map, live)
    for key in config_map.get("data", {}).keys() & config_map.get("binaryData", {}).keys():
        causes.append(wrong(f"data[{key}]", key, "duplicate of key present in binaryData"))
    return causes


def _data_causes(holder: Json, live: Json | None) -> list[Cause]:
    data = {**holder.get("data", {}), **holder.get("binaryData", {})}
    causes = [
        wrong(f"data[{key}]", key, "a valid config key must consist of alphanumeric characters, '-', '_' or '.'")
        for key in data
        if not _DATA_KEY.fullmatch(key) or key in (".", "..")
    ]
    if sum(map(len, data.values())) > _MOST_DATA:
        causes.append(Cause("data", "FieldValueTooLong", f"Too long: may not be more than {_MOST_DATA} bytes"))
    if live is not None and live.get("immutable"):
        causes += [
            prohibited(field, "field is immutable when `immutable` is set")
            for field in ("data", "binaryData", "immutable")
            if holder.get(field) != live.get(field)
        ]
    return causes


def default_service(service: Json) -> Json:
    spec = service.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        if "port" in port:
            port.setdefault("targetPort", port["port"])
    return service


def check_service(service: Json, live: Json | None) -> list[Cause]:
    spec = service["spec"]
    causes = []
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec["type"] != "ExternalName":
        causes.append(required("spec.ports"))
    for index, port in enumerate(spec.get("ports", ())):
        if not 1 <= port.get("port", 0) <= 65535:
            causes.append(
                wrong(f"spec.ports[{index}].port", port.get("port", 0), "must be between 1 and 65535, inclusive")
            )
        if len(spec["ports"]) > 1 and not port.get("name"):
            causes.append(required(f"spec.ports[{index}].name"))
    return causes


def check_lease(lease: Json, live: Json | None) -> list[Cause]:
    spec = lease.get("spec", {})
    for field in ("acquireTime", "renewTime"):
        if field in spec and not _MICRO_TIME.fullmatch(spec[field]):
            raise status.bad_request(
                f'Lease in version "v1" cannot be handled as a Lease: spec.{field}: parsing time "{spec[field]}": '
                "six digits of a second are expected, as in 2006-01-02T15:04:05.000000Z"
            )
    causes = []
    if spec.get("leaseDurationSeconds", 1) <= 0:
        causes.append(wrong("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions", 0) < 0:
        causes.append(wrong("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))
    return causes


SYSTEM_PRIORITIES: dict[str, Json] = {
    name: {"metadata": {"name": name}, "value": value}
    for name, value in {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}.items()
}
"""Every server has them."""


def default_priority_class(priority_class: Json) -> Json:
    priority_class.setdefault("preemptionPolicy", "PreemptLowerPriority")
    priority_class.setdefault("value", 0)
    return priority_class


def check_priority_class(priority_class: Json, live: Json | None) -> list[Cause]:
    name, value = priority_class["metadata"]["name"], priority_class["value"]
    causes = []
    if live is not None and live["value"] != value:
        causes.append(prohibited("value", "may not be changed in an update."))
    if value > HIGHEST_USER_PRIORITY and not name.startswith("system-"):
        why = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        causes.append(prohibited("value", why))
    return causes


def check_disruption_budget(budget: Json, live: Json | None) -> list[Cause]:
    spec = budget.get("spec", {})
    if "minAvailable" in spec and "maxUnavailable" in spec:
        return [wrong("spec", "", "minAvailable and maxUnavailable cannot be both set")]
    return selector_causes(spec["selector"], "spec.selector") if "selector" in spec else []


def selector_causes(selector: Json, path: str) -> list[Cause]:
    try:
        label_selector_of(selector)
    except MalformedInput as error:
        return [wrong(f"{path}.{error.field}", error.value, error.expected)]
    return []


def default_webhooks(configuration: Json) -> Json:
    mutating = configuration["kind"].startswith("Mutating")
    for webhook in configuration.get("webhooks", ()):
        webhook.setdefault("failurePolicy", "Fail")
        webhook.setdefault("matchPolicy", "Equivalent")
        webhook.setdefault("namespaceSelector", {})
        webhook.setdefault("objectSelector", {})
        webhook.setdefault("timeoutSeconds", 10)
        if mutating:
            webhook.setdefault("reinvocationPolicy", "Never")
        for rule in webhook.get("rules", ()):
            rule.setdefault("scope", "*")
        if "service" in webhook.get("clientConfig", {}):
            webhook["clientConfig"]["service"].setdefault("port", 443)
    return configuration


def check_webhooks(configuration: Json, live: Json | None) -> list[Cause]:
    causes: list[Cause] = []
    names: set[str] = set()
    for index, webhook in enumerate(configuration.get("webhooks", ())):
        path = f"webhooks[{index}]"
        name = webhook.get("name", "")
        if name in names:
            causes.append(duplicate(f"{path}.name", name))
        names.add(name)
        causes += _webhook_causes(webhook, path)
    return causes


def _webhook_causes(webhook: Json, path: str) -> list[Cause]:
    causes = []
    name = webhook.get("name", "")
    if name.count(".") < 2 or not is_qualified(name):
        causes.append(wrong(f"{path}.name", name, "should be a domain with at least three segments separated by dots"))
    if webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
        causes.append(unsupported(f"{path}.sideEffects", webhook.get("sideEffects", ""), ("None", "NoneOnDryRun")))
    if "v1" not in webhook.get("admissionReviewVersions", ()):
        causes.append(
            wrong(f"{path}.admissionReviewVersions", webhook.get("admissionReviewVersions", []), "must include v1")
        )
    if webhook["failurePolicy"] not in ("Ignore", "Fail"):
        causes.append(unsupported(f"{path}.failurePolicy", webhook["failurePolicy"], ("Fail", "Ignore")))
    if not 1 <= webhook["timeoutSeconds"] <= 30:
        causes.append(
            wrong(
                f"{path}.timeoutSeconds",
                webhook["timeoutSeconds"],
                "the timeout value must be between 1 and 30 seconds",
            )
        )
    for field in ("namespaceSelector", "objectSelector"):
        causes += selector_causes(webhook[field], f"{path}.{field}")
    if webhook.get("matchConditions"):
        causes.append(prohibited(f"{path}.matchConditions", "this API server does not evaluate CEL"))
    target = webhook.get("clientConfig", {})
    if ("url" in target) == ("service" in target):
        causes.append(required(f"{path}.clientConfig", "exactly one of url or service is required"))
    for at, rule in enumerate(webhook.get("rules", ())):
        for field in ("operations", "apiGroups", "apiVersions", "resources"):
            if not rule.get(field):
                causes.append(required(f"{path}.rules[{at}].{field}"))
        for operation in rule.get("operations", ()):
            if operation not in OPERATIONS:
                causes.append(unsupported(f"{path}.rules[{at}].operations", operation, OPERATIONS))
    return causes
