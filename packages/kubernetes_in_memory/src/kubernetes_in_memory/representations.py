"""How a client wants objects: whole, as a table, or their metadata only. The `Accept` header says it.

Every representation is JSON. A client that also reads protobuf or CBOR, such as client-go, gets JSON, which it accepts
too; one that reads nothing else is refused (406).
"""

from enum import Enum
from functools import lru_cache

JSON_TYPES = ("application/json", "application/*", "*/*")
META_VERSIONS = ("", "v1", "v1beta1")


class Representation(Enum):
    WHOLE = ""
    TABLE = "Table"
    """What `kubectl get` prints."""
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


@lru_cache(maxsize=256)
def representation_of(accept: str) -> Representation | None:
    """The first one in the client's order of preference that this API supports. None: it supports none."""
    if not accept.strip():
        return Representation.WHOLE
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


def _form(clause: Clause) -> Representation | None:
    media_type, parameters = clause
    if media_type not in JSON_TYPES:
        return None
    name = parameters.get("as", "")
    if name and (parameters.get("g", "") != "meta.k8s.io" or parameters.get("v", "") not in META_VERSIONS):
        return None
    try:
        return Representation(name)
    except ValueError:
        return None
