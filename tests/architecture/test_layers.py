"""The folder tree is the architecture: imports point down, and the pure layers stay pure."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "carrel"

MAY_IMPORT = {
    "core": {"core"},
    "protocols": {"core", "protocols"},
    "ports": {"core", "protocols", "ports"},
    "usecases": {"core", "protocols", "ports", "usecases"},
    "adapters": {"core", "protocols", "ports", "adapters"},
    "doors": {"core", "protocols", "ports", "usecases", "adapters", "doors", "manifests", "settings", "wiring"},
}
NO_LIBRARIES = ("core", "protocols", "ports", "usecases")

FOREIGN_WORDS = (
    "aliyun.com",
    "ALIYUN_COM",
    "gpu.scheduling",
    "nvidia.com/",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "run.ai",
    "runai",
    "gpu-fraction",
    "terminate-at",
    "hub.jupyter.org",
    "carrel.dev/",
)


@cache
def modules() -> list[tuple[str, Path, ast.Module]]:
    """The name of the layer (empty at the top), the file and its syntax tree."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        found.append(((parts[0] if len(parts) > 1 else ""), path, ast.parse(path.read_text())))
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that the layers can be seen"
            yield node.module or ""


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_point_down(layer: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for where, path, tree in modules()
        if where == layer
        for name in imports(tree)
        if name.startswith("carrel.") and name.split(".")[1] not in MAY_IMPORT[layer]
    ]
    assert not wrong


def test_decisions_words_ports_and_verbs_import_the_standard_library_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for layer, path, tree in modules()
        if layer in NO_LIBRARIES
        for name in imports(tree)
        if name.split(".")[0] not in sys.stdlib_module_names | {"carrel"}
    ]
    assert not wrong


def test_no_door_imports_another() -> None:
    wrong = []
    for layer, path, tree in modules():
        parts = path.relative_to(SOURCE).parts
        if layer == "doors" and len(parts) > 2:
            own = f"carrel.doors.{parts[1]}"
            wrong += [
                f"{path.relative_to(ROOT)} imports {name}"
                for name in imports(tree)
                if name.startswith("carrel.doors.") and not f"{name}.".startswith(f"{own}.")
            ]
    assert not wrong


def test_the_core_and_the_words_do_no_io_and_read_no_clock() -> None:
    forbidden = {"os", "io", "socket", "subprocess", "time", "asyncio", "threading", "logging", "pathlib", "secrets"}
    wrong = []
    for layer, path, tree in modules():
        if layer not in ("core", "protocols"):
            continue
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in imports(tree) if name in forbidden]
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno} calls {ast.unparse(node.func)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in ("now", "utcnow", "today", "open", "print", "input")
        ]
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno} draws by itself; only a Random that is passed in may"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        ]
    assert not wrong


def test_foreign_words_are_spelled_in_protocols_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} spells {word}"
        for layer, path, tree in modules()
        if layer != "protocols"
        for node in strings(tree)
        for word in FOREIGN_WORDS
        if word in str(node.value)
    ]
    assert not wrong


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """But no docstrings, and not the string under a field, which says what the field is for."""
    nodes = list(ast.walk(tree))
    told = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in told:
            yield node


def test_only_the_edge_reads_the_environment() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for layer, path, tree in modules()
        if layer not in ("", "doors")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv")
    ]
    assert not wrong, "settings are passed in; an adapter that reads the environment itself cannot be tested or trusted"


def test_every_module_says_what_it_is_for() -> None:
    assert not [str(path.relative_to(ROOT)) for _, path, tree in modules() if not ast.get_docstring(tree)]


def test_modules_stay_small_enough_to_be_read() -> None:
    lines = {path: len(path.read_text().splitlines()) for _, path, _ in modules()}
    assert not {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > 500}
