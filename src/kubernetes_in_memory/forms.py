"""In which form a caller reads objects: as they are, as a table, or their metadata only. `Accept` says it.

Every form is JSON. A caller that also reads protobuf or CBOR, as client-go does, gets JSON, which it accepts too; one
that reads nothing but them is refused (406).
"""

from enum import Enum
from functools import lru_cache

JSON_TYPES = ("application/json", "application/*", "*/*")
META_VERSIONS = ("", "v1", "v1beta1")


class Form(Enum):
    WHOLE = ""
    TABLE = "Table"
    """What `kubectl get` prints."""
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


@lru_cache(maxsize=256)
def form_of(accept: str) -> Form | None:
    """The first form in the order of preference that this API can give. None: there is no such form."""
    if not accept.strip():
        return Form.WHOLE
    clauses = sorted(map(_clause, accept.split(",")), key=lambda clause: -_quality(clause[1]))
    return next((form for form in map(_form, clauses) if form is not None), None)


Clause = tuple[str, dict[str, str]]


def _clause(text: str) -> Clause:
    media_type, *parameters = (part.strip() for part in text.split(";"))
    pairs = (parameter.partition("=") for parameter in parameters)
    return media_type.lower(), {name.strip(): value.strip() for name, _, value in pairs}


def _quality(parameters: dict[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0


def _form(clause: Clause) -> Form | None:
    media_type, parameters = clause
    if media_type not in JSON_TYPES:
        return None
    name = parameters.get("as", "")
    if name and (parameters.get("g", "") != "meta.k8s.io" or parameters.get("v", "") not in META_VERSIONS):
        return None
    try:
        return Form(name)
    except ValueError:
        return None
