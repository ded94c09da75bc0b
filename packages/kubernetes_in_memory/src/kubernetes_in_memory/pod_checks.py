"""Checks of a pod's spec. Everything that is wrong is reported at once, field by field.

Pure. As strict as kube-apiserver where a user would notice; shapes and types were checked before.
"""

import re
from typing import Any

from kubernetes_in_memory.causes import Cause, duplicate, required, unsupported, wrong
from kubernetes_in_memory.objects import (
    LABEL_RULE,
    SUBDOMAIN_RULE,
    is_label,
    is_label_value,
    is_qualified,
    is_subdomain,
)
from kubernetes_in_memory.quantities import RULE, amount

Json = dict[str, Any]

CHOICES = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
}
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
PROTOCOLS = ("SCTP", "TCP", "UDP")
OPERATORS = ("Equal", "Exists", "Gt", "Lt")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
STANDARD_RESOURCES = ("cpu", "memory", "ephemeral-storage")
# Any printable ASCII but '=', as the newer servers allow.
_VARIABLE = re.compile(r"[ -<>-~]+")
_PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def check(pod: Json) -> list[Cause]:
    return check_spec(pod.get("spec", {}), "spec")


def check_spec(spec: Json, path: str) -> list[Cause]:
    causes: list[Cause] = []
    volumes = _volumes(spec, path, causes)
    names: set[str] = set()
    if not spec.get("containers"):
        causes.append(required(f"{path}.containers"))
    for place in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(place, ())):
            _container(container, f"{path}.{place}[{index}]", names, volumes, causes)
    for field, known in CHOICES.items():
        if field in spec and spec[field] not in known:
            causes.append(unsupported(f"{path}.{field}", spec[field], known))
    _numbers(spec, path, causes)
    for key, value in spec.get("nodeSelector", {}).items():
        if not is_qualified(key) or not is_label_value(value):
            causes.append(wrong(f"{path}.nodeSelector", f"{key}={value}", "must be a label key and a label value"))
    for index, toleration in enumerate(spec.get("tolerations", ())):
        _toleration(toleration, f"{path}.tolerations[{index}]", causes)
    if spec.get("nodeName") and not is_subdomain(spec["nodeName"]):
        causes.append(wrong(f"{path}.nodeName", spec["nodeName"], SUBDOMAIN_RULE))
    return causes


def _numbers(spec: Json, path: str, causes: list[Cause]) -> None:
    grace = spec.get("terminationGracePeriodSeconds", 30)
    if grace < 0:
        causes.append(wrong(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"))
    deadline = spec.get("activeDeadlineSeconds", 1)
    if not 1 <= deadline <= 2**31 - 1:
        causes.append(wrong(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"))


def _volumes(spec: Json, path: str, causes: list[Cause]) -> set[str]:
    names: set[str] = set()
    for index, volume in enumerate(spec.get("volumes", ())):
        _unique_name(volume, f"{path}.volumes[{index}]", names, causes)
        if len(volume) > 2:
            causes.append(
                wrong(f"{path}.volumes[{index}]", volume.get("name", ""), "may not specify more than 1 volume type")
            )
    return names


def _unique_name(thing: Json, path: str, taken: set[str], causes: list[Cause]) -> None:
    name = thing.get("name", "")
    if not name:
        causes.append(required(f"{path}.name"))
    elif not is_label(name):
        causes.append(wrong(f"{path}.name", name, LABEL_RULE))
    elif name in taken:
        causes.append(duplicate(f"{path}.name", name))
    taken.add(name)


def _container(container: Json, path: str, names: set[str], volumes: set[str], causes: list[Cause]) -> None:
    _unique_name(container, path, names, causes)
    if not container.get("image", "").strip():
        causes.append(required(f"{path}.image"))
    if container.get("imagePullPolicy", "Always") not in PULL_POLICIES:
        causes.append(unsupported(f"{path}.imagePullPolicy", container["imagePullPolicy"], PULL_POLICIES))
    for index, variable in enumerate(container.get("env", ())):
        _variable(variable, f"{path}.env[{index}]", causes)
    for index, port in enumerate(container.get("ports", ())):
        _port(port, f"{path}.ports[{index}]", causes)
    _mounts(container, path, volumes, causes)
    _resources(container.get("resources", {}), f"{path}.resources", causes)


def _variable(variable: Json, path: str, causes: list[Cause]) -> None:
    name = variable.get("name", "")
    if not name:
        causes.append(required(f"{path}.name"))
    elif not _VARIABLE.fullmatch(name):
        causes.append(wrong(f"{path}.name", name, "must be printable ASCII characters other than '='"))
    if variable.get("value") and "valueFrom" in variable:
        causes.append(wrong(f"{path}.valueFrom", "", "may not be specified when `value` is not empty"))
    if "valueFrom" in variable and len(variable["valueFrom"]) != 1:
        causes.append(
            wrong(
                f"{path}.valueFrom",
                "",
                "must specify exactly one of fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef",
            )
        )


def _port(port: Json, path: str, causes: list[Cause]) -> None:
    number = port.get("containerPort", 0)
    if not number:
        causes.append(required(f"{path}.containerPort"))
    elif not 1 <= number <= 65535:
        causes.append(wrong(f"{path}.containerPort", number, "must be between 1 and 65535, inclusive"))
    if port.get("protocol", "TCP") not in PROTOCOLS:
        causes.append(unsupported(f"{path}.protocol", port["protocol"], PROTOCOLS))
    if "name" in port and not _PORT_NAME.fullmatch(port["name"]):
        causes.append(
            wrong(
                f"{path}.name", port["name"], "at most 15 lower case letters, digits or '-', with at least one letter"
            )
        )


def _mounts(container: Json, path: str, volumes: set[str], causes: list[Cause]) -> None:
    places: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts", ())):
        name, place = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            causes.append(required(f"{path}.volumeMounts[{index}].name"))
        elif name not in volumes:
            causes.append(Cause(f"{path}.volumeMounts[{index}].name", "FieldValueNotFound", f'Not found: "{name}"'))
        if not place:
            causes.append(required(f"{path}.volumeMounts[{index}].mountPath"))
        elif place in places:
            causes.append(wrong(f"{path}.volumeMounts[{index}].mountPath", place, "must be unique"))
        places.add(place)


def _resources(resources: Json, path: str, causes: list[Cause]) -> None:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, value in amounts.items():
            _amount(name, value, f"{path}.{part}", causes)
    for name, value in requests.items():
        asked, limit = amount(str(value)), amount(str(limits[name])) if name in limits else None
        if is_extended(name) and limit is None:
            causes.append(required(f"{path}.limits", f"Limit must be set for non overcommitable resources ({name})"))
        elif is_extended(name) and asked != limit:
            causes.append(wrong(f"{path}.requests", value, f"must be equal to {name} limit of {limits[name]}"))
        elif asked is not None and limit is not None and asked > limit:
            causes.append(
                wrong(f"{path}.requests", value, f"must be less than or equal to {name} limit of {limits[name]}")
            )


def _amount(name: str, value: object, path: str, causes: list[Cause]) -> None:
    place = f"{path}[{name}]"
    if not is_qualified(name) or (
        "/" not in name and name not in STANDARD_RESOURCES and not name.startswith("hugepages-")
    ):
        causes.append(wrong(place, name, "must be a standard resource type or fully qualified"))
    found = amount(value) if isinstance(value, str) else None
    if found is None:
        causes.append(wrong(place, value, f"must be {RULE}"))
    elif found < 0:
        causes.append(wrong(place, value, "must be greater than or equal to 0"))
    elif is_extended(name) and found.denominator != 1:
        causes.append(wrong(place, value, "must be an integer"))


def is_extended(name: str) -> bool:
    """A resource that a device plugin or an administrator adds: counted in whole units, never overcommitted."""
    domain, slash, _ = name.rpartition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _toleration(toleration: Json, path: str, causes: list[Cause]) -> None:
    operator = toleration.get("operator", "Equal") or "Equal"
    if operator not in OPERATORS:
        causes.append(unsupported(f"{path}.operator", operator, OPERATORS))
    if operator == "Exists" and toleration.get("value"):
        causes.append(wrong(f"{path}.operator", operator, "value must be empty when `operator` is 'Exists'"))
    if not toleration.get("key") and operator != "Exists":
        causes.append(wrong(f"{path}.operator", operator, "operator must be Exists when `key` is empty"))
    if toleration.get("effect", "") not in ("", *EFFECTS):
        causes.append(unsupported(f"{path}.effect", toleration["effect"], EFFECTS))
    if toleration.get("key") and not is_qualified(toleration["key"]):
        causes.append(wrong(f"{path}.key", toleration["key"], "must be a label key"))
