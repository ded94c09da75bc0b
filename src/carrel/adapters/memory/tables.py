"""Tables: what `kubectl get` shows. Negotiated by Accept; the columns are in `columns`."""

from collections.abc import Callable
from typing import Any

from carrel.adapters.memory.calls import Call
from carrel.adapters.memory.kinds import Kind
from carrel.adapters.memory.store import Stored, encode

Json = dict[str, Any]


def form(call: Call) -> str:
    """How much of each object goes with its row: `Metadata` unless asked otherwise."""
    return call.query.get("includeObject", "Metadata")


def table(kind: Kind, trees: list[Json], metadata: Json, include: str) -> Json:
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": []}


def row_renderer(call: Call) -> Callable[[Stored], bytes]:
    """One watched object as a table of one row."""
    include = form(call)

    def render(stored: Stored) -> bytes:
        return encode(table(call.kind, [stored.tree], {"resourceVersion": str(stored.version)}, include))

    return render
