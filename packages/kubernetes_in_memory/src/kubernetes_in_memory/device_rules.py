"""Defaults and checks of ResourceClaims and their templates. Nothing here allocates a device.

As in kube-apiserver, what a claim asks for never changes; an allocation is set and removed, and never changed; a claim
without an allocation is reserved for nobody.
"""

from typing import Any

from kubernetes_in_memory.causes import Cause, prohibited, required, too_many, wrong

Json = dict[str, Any]

IMMUTABLE = "field is immutable"
MOST_CONSUMERS = 256


def default_claim(claim: Json) -> Json:
    _default_spec(claim.get("spec", {}))
    return claim


def default_template(template: Json) -> Json:
    _default_spec(template.get("spec", {}).get("spec", {}))
    return template


def _default_spec(spec: Json) -> None:
    for request in spec.get("devices", {}).get("requests", ()):
        for part in (request.get("exactly"), *request.get("firstAvailable", ())):
            if part is not None and part.setdefault("allocationMode", "ExactCount") == "ExactCount":
                part.setdefault("count", 1)


def check_template(template: Json, live: Json | None) -> list[Cause]:
    if live is not None and template.get("spec") != live.get("spec"):
        return [wrong("spec", template.get("spec"), IMMUTABLE)]
    return _spec_causes("spec.spec", template.get("spec", {}).get("spec", {}))


def check_claim(claim: Json, live: Json | None) -> list[Cause]:
    causes = _spec_causes("spec", claim.get("spec", {}))
    if live is not None and claim.get("spec") != live.get("spec"):
        causes.append(wrong("spec", claim.get("spec"), IMMUTABLE))
    return causes + _status_causes(claim, live or {})


def _spec_causes(path: str, spec: Json) -> list[Cause]:
    return [
        required(f"{path}.devices.requests[{number}].exactly.deviceClassName")
        for number, request in enumerate(spec.get("devices", {}).get("requests", ()))
        if "exactly" in request and not request["exactly"].get("deviceClassName")
    ]


def _status_causes(claim: Json, live: Json) -> list[Cause]:
    now, before = claim.get("status", {}), live.get("status", {})
    allocation, consumers = now.get("allocation"), now.get("reservedFor", [])
    causes = []
    if before.get("allocation") and allocation and before["allocation"] != allocation:
        causes.append(wrong("status.allocation", None, "field cannot be modified once set"))
    if consumers and not allocation:
        causes.append(prohibited("status.reservedFor", "may not be specified when `allocated` is not set"))
    if len(consumers) > MOST_CONSUMERS:
        causes.append(too_many("status.reservedFor", len(consumers), MOST_CONSUMERS))
    return causes
