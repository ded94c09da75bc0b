"""What a new ResourceClaim, or a template for claims, cannot ask for. Other than the gate this decides nothing about
GPUs: it says early what the API server would change in silence."""

from collections.abc import Mapping
from typing import Any

import msgspec

from carrel.admission.review import AdmissionRequest
from carrel.ledger.refusals import Refusal
from carrel.resource_claims.device_claims import DeviceClaims
from carrel.resource_claims.objects import ResourceClaimSpec


def why_not_claimed(request: AdmissionRequest, device_claims: DeviceClaims) -> Refusal | None:
    if request.operation != "CREATE" or request.subresource or request.object is None:
        return None
    refusal = device_claims.why_not_divided(_spec(request.object))
    name = request.name or "without a name yet"
    return Refusal(f"{request.kind} {request.namespace}/{name}: {refusal}") if refusal is not None else None


def _spec(document: Mapping[str, Any]) -> ResourceClaimSpec:
    """Read the spec of a claim, or of a template's claims. What cannot be read, the API server itself refuses."""
    spec = document.get("spec") or {}
    try:
        return msgspec.convert(spec.get("spec", spec), ResourceClaimSpec)
    except msgspec.ValidationError:
        return ResourceClaimSpec()
