"""The code as syntax trees. What is written as a literal is read from here: no object has to be made for it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.reference import ROOT

SOURCE = ROOT / "src" / "carrel"

COMPONENTS = {
    "admission": "webhook",
    "bookings": "booking",
    "lifecycle": "controller",
    "node": "agent",
    "resource_claims/allocation": "controller",
    "resource_claims/gate": "webhook",
    "resource_claims/node": "agent",
    "resource_claims/shadows": "controller",
    "scheduling": "extender",
}
"""Folder → the command that runs it."""


@dataclass(frozen=True)
class Module:
    path: Path
    tree: ast.Module

    @property
    def place(self) -> str:
        return self.path.relative_to(ROOT / "src").as_posix()

    @property
    def folder(self) -> str:
        """The folder of `src/carrel` that it is in; empty for what lies beside them. `resource_claims` has a folder for
        each component."""
        parts = self.path.relative_to(SOURCE).parts[:-1]
        return "/".join(parts[: 2 if parts[:1] == ("resource_claims",) else 1])

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    def constants(self) -> dict[str, str]:
        """Of the module: NAME → text, where the text is written out."""
        return {
            node.targets[0].id: node.value.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        }

    def calls(self) -> Iterator[ast.Call]:
        """In the order of the text."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def imports(self, package: str) -> bool:
        return any(
            isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package
            for node in ast.walk(self.tree)
        )


@cache
def modules() -> tuple[Module, ...]:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if "_pb2" not in path.name]
    return tuple(Module(path, ast.parse(path.read_text())) for path in paths)


def component(module: Module) -> str:
    return COMPONENTS.get(module.folder, "")


def called(call: ast.Call) -> str:
    """The last word of what is called: `Route` of `routing.Route(…)`."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def text(node: ast.expr | None, known: dict[str, str] | None = None) -> str:
    """The literal, or the constant of the module that is named; else empty."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return (known or {}).get(node.id, "")
    return ""


def argument(call: ast.Call, position: int, *names: str) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg in names]
    return named[0] if named else call.args[position] if len(call.args) > position else None
