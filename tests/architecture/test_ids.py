"""What is known by an id says by its type which: in the ledger, and in what is known of the cluster."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "carrel"
IDS = {
    "uid",
    "uids",
    "pod_uid",
    "uuid",
    "uuids",
    "gpu_uuid",
    "node",
    "nodes",
    "node_name",
    "booking",
    "person",
    "people",
}
NO_ID = {
    ("cluster/record/known_lease.py", "uid"): "of the Lease itself",
    ("cluster/record/cluster_ledger.py", "lease_deleted.uid"): "of the Lease itself",
}
"""Module and name → what it is instead."""


def named(tree: ast.AST) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield each parameter and annotated field: its name, the function that it is of with its name, its annotation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg):
                if each is not None and each.annotation is not None:
                    yield each.arg, f"{node.name}.{each.arg}", each.annotation
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.target.id, node.annotation


def is_text(annotation: ast.expr) -> bool:
    """Whether it is `str`, or a sequence or a set of them."""
    if isinstance(annotation, ast.Subscript):
        of = annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
        return is_text(of)
    return isinstance(annotation, ast.Name) and annotation.id == "str"


@pytest.mark.parametrize("folder", ["ledger", "cluster"])
def test_no_id_is_plain_text(folder: str) -> None:
    wrong = [
        f"{module}:{annotation.lineno} {where}: {ast.unparse(annotation)}"
        for path in sorted((SOURCE / folder).rglob("*.py"))
        for name, where, annotation in named(ast.parse(path.read_text()))
        if name in IDS and is_text(annotation)
        for module in [path.relative_to(SOURCE).as_posix()]
        if (module, name) not in NO_ID and (module, where) not in NO_ID
    ]
    assert not wrong
