"""Tables: objects as rows of cells, which is what `kubectl get` asks for and prints."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from carrel.adapters.memory.calls import Call
from carrel.adapters.memory.columns import columns_of, definitions
from carrel.adapters.memory.store import Stored, encode

Json = dict[str, Any]


def table(call: Call, trees: Iterable[Json], metadata: Json, now: datetime) -> bytes:
    columns = columns_of(call.kind)
    include = call.query.get("includeObject", "Metadata")
    rows = []
    for tree in trees:
        row: Json = {"cells": [column.cell(tree, now) for column in columns]}
        if include != "None":
            row["object"] = _accompanying(tree, include)
        rows.append(row)
    head: Json = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return encode({**head, "columnDefinitions": definitions(columns), "rows": rows})


def _accompanying(tree: Json, include: str) -> Json:
    if include == "Object":
        return tree
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": tree["metadata"]}


def one_row(call: Call, clock: Callable[[], datetime]) -> Callable[[Stored], bytes]:
    """An object as a table of one row: what a get or a watch of tables gives."""

    def render(stored: Stored) -> bytes:
        return table(call, [stored.tree], {"resourceVersion": str(stored.version)}, clock())

    return render
