"""Tables: objects as rows of cells, which is what `kubectl get` asks for and prints."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.columns import columns_of, definitions
from kubernetes_in_memory.request_info import Call
from kubernetes_in_memory.store import StoredObject, encode
from kubernetes_in_memory.watch import INITIAL_EVENTS_END

Json = dict[str, Any]


def table(call: Call, trees: Iterable[Json], metadata: Json, now: datetime, *, headers: bool = True) -> bytes:
    columns = columns_of(call.kind)
    include = call.query.get("includeObject") or "Metadata"
    if include not in ("None", "Metadata", "Object"):
        raise status.bad_request(f'unrecognized includeObject value: "{include}"')
    rows = []
    for tree in trees:
        row: Json = {"cells": [column.cell(tree, now) for column in columns]}
        # The mark at the end of a streaming list is in the metadata: it is sent also to clients that want no objects.
        if include != "None" or INITIAL_EVENTS_END in tree["metadata"].get("annotations", ()):
            row["object"] = call.kind.as_shown(tree) if include == "Object" else _metadata(tree)
        rows.append(row)
    head: Json = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return encode({**head, "columnDefinitions": definitions(columns) if headers else None, "rows": rows})


def _metadata(tree: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": tree["metadata"]}


def one_row(call: Call, clock: Callable[[], datetime]) -> Callable[[StoredObject], bytes]:
    """An object as a table of one row, for a get or a watch. Only the first row of a watch comes with the columns."""
    first = True

    def render(stored: StoredObject) -> bytes:
        nonlocal first
        headers, first = first, False
        return table(call, [stored.tree], {"resourceVersion": str(stored.version)}, clock(), headers=headers)

    return render
