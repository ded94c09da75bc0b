"""Nothing stands twice: a run of six lines of code has one home."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = 6
"""So many lines, without blank lines, comments, docstrings and imports. The signature of a function is one line: an
implementation has that of its interface."""

ALLOWED = {
    (
        "packages/kubernetes_in_memory/src/kubernetes_in_memory/messages.py",
        "src/carrel/kubernetes/transport.py",
    ): ("two packages that do not import each other, and the message that one sends to the other in one process"),
}
"""Files that may have a run in common → why."""


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that does something."""
    text = path.read_text()
    silent: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            silent.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            silent.update(range(node.lineno + 1, node.body[0].lineno))
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and number not in silent:
            yield number, stripped


def repeated(paths: list[Path]) -> list[str]:
    """The places at which a run begins that stands elsewhere too; of overlapping runs, the first."""
    found: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        lines = list(code_lines(path))
        for start in range(len(lines) - RUN + 1):
            window = lines[start : start + RUN]
            found["\n".join(text for _, text in window)].append((path, window[0][0]))
    places = sorted({tuple(each) for each in found.values() if len(each) > 1})
    told: list[str] = []
    last: dict[tuple[Path, ...], int] = {}
    for each in places:
        (first, line), *others = each
        key = (first, *(path for path, _ in others))
        is_allowed = tuple(path.relative_to(ROOT).as_posix() for path in key) in ALLOWED
        if line - last.get(key, -RUN * 2) > RUN * 2 and not is_allowed:
            told.append(" = ".join(f"{path.relative_to(ROOT)}:{number}" for path, number in each))
        last[key] = line
    return told


def test_no_run_of_six_lines_stands_twice() -> None:
    sources = (ROOT / "packages" / "kubernetes_in_memory" / "src", ROOT / "src")
    paths = [path for source in sources for path in sorted(source.rglob("*.py")) if "_pb2" not in path.name]

    assert not repeated(paths)


def test_a_run_that_stands_twice_is_found_whatever_is_between_its_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = [f"    step_{number}()" for number in range(RUN)]
    (tmp_path / "one.py").write_text("\n".join(["def one():", *steps]))
    (tmp_path / "other.py").write_text("\n".join(["def other():", '    """Another."""', "", "    # first", *steps]))
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)

    assert repeated(sorted(tmp_path.glob("*.py"))) == ["one.py:2 = other.py:5"]
    assert not repeated([tmp_path / "one.py"])
