"""Get, list and watch: which objects, from which version, in pages, in the form that the caller reads.

A list and its continue token belong to one version: later pages show the state of the first one. A watch from the
version of a list misses no change and repeats none.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from kubernetes_in_memory import status, tables
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.malformed_input import MalformedInput
from kubernetes_in_memory.representations import Representation
from kubernetes_in_memory.request_info import Call
from kubernetes_in_memory.resource_version_options import list_version, watch_start
from kubernetes_in_memory.selectors import FieldSelector, LabelSelector
from kubernetes_in_memory.store import Collection, HistoryExpired, ObjectStore, StoredObject, encode
from kubernetes_in_memory.watch import Watch

Json = dict[str, Any]

META = "meta.k8s.io/v1"
PAGE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True, slots=True)
class ObjectSelection:
    """Which objects a call is about."""

    kind: Kind
    namespace: str
    name: str
    labels: LabelSelector
    fields: FieldSelector

    @property
    def everything(self) -> bool:
        return not (self.labels.requirements or self.fields.requirements or self.name)

    def matches(self, stored: StoredObject) -> bool:
        metadata = stored.tree["metadata"]
        if self.namespace and metadata.get("namespace", "") != self.namespace:
            return False
        if self.name and metadata["name"] != self.name:
            return False
        if self.labels.requirements and not self.labels.matches(metadata.get("labels") or {}):
            return False
        return not self.fields.requirements or self.fields.matches(
            lambda field: field_of(stored.tree, self.kind.stored_field(field))
        )


def selected_by(call: Call) -> ObjectSelection:
    kind = call.kind
    try:
        labels = LabelSelector.parse(call.query.get("labelSelector", ""))
        fields = FieldSelector.parse(call.query.get("fieldSelector", ""))
    except MalformedInput as error:
        raise status.bad_request(f"unable to parse the selector: {error}") from error
    for field in fields.fields:
        if field not in ("metadata.name", "metadata.namespace", *kind.selectable):
            raise status.bad_request(
                f'Unable to find "{kind.api_version}, Resource={kind.plural}" that match label selector '
                f'"{labels}", field selector "{fields}": field label not supported: {field}'
            )
    return ObjectSelection(kind, call.target.namespace, call.target.name, labels, fields)


def field_of(tree: Json, path: str) -> str:
    """A field as field selectors compare it: text, empty if it is absent."""
    if path == "source":
        # An Event's source is chosen by its component.
        path = "source.component"
    value: Any = tree
    for step in path.split("."):
        if not isinstance(value, dict):
            return ""
        value = value.get(step)
    if value is None:
        return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def in_version(kind: Kind) -> Callable[[StoredObject], bytes]:
    """How an object is written in the group and version that was asked for."""

    def render(stored: StoredObject) -> bytes:
        if stored.tree["apiVersion"] == kind.api_version:
            return stored.raw
        return encode(kind.as_shown(stored.tree))

    return render


class Reads:
    def __init__(self, store: ObjectStore, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock

    def renderer(self, call: Call) -> Callable[[StoredObject], bytes]:
        """How one object is written in the form that the caller reads."""
        form = call.form
        if form is Representation.TABLE:
            return tables.one_row(call, self._clock)
        return in_version(call.kind) if form is Representation.WHOLE else _metadata_of

    def get(self, call: Call) -> StoredObject:
        return self.find(call.target.kind, call.target.namespace, call.target.name)

    def find(self, kind: Kind, namespace: str, name: str) -> StoredObject:
        stored = self._store.collection(kind.storage).get(namespace, name)
        if stored is None:
            raise status.not_found(kind, name)
        return stored

    def selection(self, selected: ObjectSelection) -> list[StoredObject]:
        """The objects that exist now, in the order of namespace and name."""
        found = filter(selected.matches, self._store.collection(selected.kind.storage).items(selected.namespace))
        return sorted(found, key=lambda stored: stored.key)

    def list_bytes(self, call: Call) -> bytes:
        form = call.form
        selected = selected_by(call)
        collection = self._store.collection(call.kind.storage)
        version, after = self._place(call)
        if version == self._store.version:
            items = self.selection(selected)
        else:
            items = [item for item in self._items_at(collection, version, call) if selected.matches(item)]
        if after is not None:
            items = [item for item in items if item.key > after]
        metadata: Json = {"resourceVersion": str(version)}
        limit = call.number("limit") or 0
        if limit and len(items) > limit:
            metadata["continue"] = _token(version, items[limit - 1].key)
            if selected.everything:
                metadata["remainingItemCount"] = len(items) - limit
            items = items[:limit]
        if form is Representation.TABLE:
            return tables.table(call, [item.tree for item in items], metadata, self._clock())
        if form is Representation.METADATA_LIST:
            head = {"kind": form.value, "apiVersion": META, "metadata": metadata}
            return _joined(head, map(_metadata_of, items))
        head = {"kind": call.kind.list_name, "apiVersion": call.kind.api_version, "metadata": metadata}
        return _joined(head, map(in_version(call.kind), items))

    def _place(self, call: Call) -> tuple[int, tuple[str, str] | None]:
        """The version to list at, and the object after which to continue."""
        asked, exact = list_version(call)
        if token := call.query.get("continue", ""):
            return _read_token(token)
        current = self._store.version
        if asked > current:
            raise status.too_large_version(asked, current)
        return (asked, None) if exact else (current, None)

    @staticmethod
    def _items_at(collection: Collection, version: int, call: Call) -> list[StoredObject]:
        try:
            return collection.items_at(version, call.target.namespace)
        except HistoryExpired as gone:
            raise status.expired(PAGE_TOO_OLD if call.query.get("continue") else str(gone)) from gone

    def watch(self, call: Call) -> Watch:
        selected = selected_by(call)
        start = watch_start(call)
        bookmarks = call.flag("allowWatchBookmarks")
        return Watch(
            matches=selected.matches,
            render=self.renderer(call),
            api_version=call.kind.api_version,
            kind=call.kind.kind,
            after=start.version or self._store.version,
            initial=start.initial,
            marks_initial_end=start.initial and bookmarks,
            bookmarks=bookmarks,
            timeout_s=float(call.number("timeoutSeconds") or 3600),
        )


def _metadata_of(stored: StoredObject) -> bytes:
    return encode({"kind": Representation.METADATA.value, "apiVersion": META, "metadata": stored.tree["metadata"]})


def _joined(head: Json, items: Iterable[bytes]) -> bytes:
    # Each object was encoded when it was written; a list only joins the bytes.
    return encode(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"


def _token(version: int, after: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(encode({"v": "meta.k8s.io/v1", "rv": version, "after": after})).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        content = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = content["after"]
        return int(content["rv"]), (str(namespace), str(name))
    except (binascii.Error, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise status.bad_request("continue key is not valid: take it from the metadata of the page before") from error
