"""`python -m tools.ratchets`: lowers the numbers of two tests to what the folders of `src/carrel` have now.

    tests/architecture/test_size.py         lines of Python
    tests/architecture/test_docstrings.py   docstrings that lean on another

Rows that are exceeded stay as they are: to raise one is a decision, by hand, with its reason.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "carrel"
TESTS = ROOT / "tests" / "architecture"
SINGLE_FILES = "files beside the folders"
ROW = re.compile(r'^    "(?P<folder>[^"]+)": (?P<number>[\d_]+),', re.MULTILINE)
LEANS_ON_ANOTHER = re.compile(r"(Of|By|As|The same|Whose)\b")


def modules(source: Path = SOURCE) -> Iterator[tuple[str, Path]]:
    """Yield each module, without generated stubs, with the folder that it is in, also by a subfolder."""
    for path in sorted(source.rglob("*.py")):
        if "_pb2" not in path.name:
            yield path.relative_to(source).parts[0] if path.parent != source else SINGLE_FILES, path


def lines_by_folder(source: Path = SOURCE) -> Counter[str]:
    found: Counter[str] = Counter()
    for folder, path in modules(source):
        found[folder] += len(path.read_text().splitlines())
    return found


def leaning_docstrings(source: Path = SOURCE) -> list[tuple[str, str]]:
    """Return folder and place of each docstring of a module, class or function that does not stand by itself."""
    return [
        (folder, f"{path.relative_to(source)}:{node.body[0].lineno}: {text.splitlines()[0][:60]}")
        for folder, path in modules(source)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and LEANS_ON_ANOTHER.match(text := ast.get_docstring(node) or "")
    ]


def lowered(table: str, now: Mapping[str, int]) -> str:
    """Return the text of the table with each row at what its folder has, if that is less. Reasons stay."""

    def row(match: re.Match[str]) -> str:
        before = int(match["number"])
        return f'    "{match["folder"]}": {min(before, now.get(match["folder"], 0)):_},'

    return ROW.sub(row, table)


def main() -> None:
    for name, now in (
        ("test_size.py", lines_by_folder()),
        ("test_docstrings.py", Counter(folder for folder, _ in leaning_docstrings())),
    ):
        table = TESTS / name
        before = table.read_text()
        table.write_text(lowered(before, now))
        rows = {match["folder"]: int(match["number"]) for match in ROW.finditer(before)}
        print(name)
        for folder in sorted({*rows, *now}):
            exceeded = "  exceeded" if now[folder] > rows.get(folder, 0) else ""
            print(f"  {folder:26}{rows.get(folder, 0):8,} →{now[folder]:8,}{exceeded}")
        print(f"  {'all':26}{sum(rows.values()):8,} →{now.total():8,}")


if __name__ == "__main__":
    main()
