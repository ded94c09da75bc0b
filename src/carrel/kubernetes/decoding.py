"""Decodes objects, lists and lines of a watch from JSON into the classes of `kubernetes.objects.kinds`.

An object never makes a list fail. One that does not fit (a null where text belongs, a custom resource written before
its schema) is read again without its nulls and, if that does not help, by its metadata alone, with a warning.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from carrel.kubernetes.objects.kinds import ListMetadata, Metadata, Object
from carrel.kubernetes.objects.resources import Resource

V = TypeVar("V", bound=Object)

log = logging.getLogger(__name__)


class _List(msgspec.Struct, rename="camel"):
    """One page, its objects not yet read."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] | None = None


_list_reader = msgspec.json.Decoder(_List)


@cache
def reader_of(resource: Resource[V], *, is_strict: bool = False) -> Callable[[bytes | msgspec.Raw], V]:
    """Reads one object of the kind from its JSON; nulls count as absent. Raises `msgspec.DecodeError` if it is not JSON
    at all; with `is_strict`, also if it does not fit the kind."""
    decode = msgspec.json.Decoder(resource.object_type).decode

    def read(body: bytes | msgspec.Raw) -> V:
        try:
            return decode(body)
        except msgspec.ValidationError:
            document = _without_nulls(msgspec.json.decode(body))
        try:
            return msgspec.convert(document, resource.object_type)
        except msgspec.ValidationError as mismatch:
            if is_strict:
                raise
            return _with_metadata_alone(resource, document, mismatch)

    return read


def read_object(resource: Resource[V], document: dict[str, Any]) -> V:
    """One that does not fit its kind is read by its metadata alone."""
    read: Callable[[bytes], V] = reader_of(resource)
    return read(msgspec.json.encode(document))


def read_list(resource: Resource[V], body: bytes) -> tuple[ListMetadata, Sequence[V]]:
    page, read = _list_reader.decode(body), reader_of(resource)
    return page.metadata, [read(item) for item in page.items or ()]


def _with_metadata_alone(resource: Resource[V], document: Any, mismatch: msgspec.ValidationError) -> V:
    """If they do not fit either, only what the object is known by."""
    found = document.get("metadata", {})
    try:
        metadata = msgspec.convert(found, Metadata)
    except msgspec.ValidationError:
        words = {key: str(found.get(key, "")) for key in ("name", "namespace", "uid", "resourceVersion")}
        metadata = msgspec.convert(words, Metadata)
    log.warning("object_unreadable kind=%s %s/%s: %s", resource.kind, metadata.namespace, metadata.name, mismatch)
    return resource.object_type(metadata=metadata)


def _without_nulls(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _without_nulls(value) for key, value in document.items() if value is not None}
    if isinstance(document, list):
        return [_without_nulls(item) for item in document if item is not None]
    return document
