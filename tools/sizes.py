"""`python -m tools.sizes`: lowers the rows of `tests/architecture/test_size.py` to the lines that the folders have.

Rows that are exceeded stay as they are: to raise one is a decision, by hand, with its reason.
"""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "carrel"
TABLE = ROOT / "tests" / "architecture" / "test_size.py"
SINGLE_FILES = "files beside the folders"
ROW = re.compile(r'^    "(?P<folder>[^"]+)": (?P<lines>[\d_]+),', re.MULTILINE)


def lines_by_folder(source: Path = SOURCE) -> dict[str, int]:
    """Return how many lines of Python each folder has, with all of its subfolders and without generated stubs."""
    found: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        if "_pb2" not in path.name:
            folder = path.relative_to(source).parts[0] if path.parent != source else SINGLE_FILES
            found[folder] += len(path.read_text().splitlines())
    return dict(found)


def lowered(table: str, lines: dict[str, int]) -> str:
    """Return the text of the table with each row at what its folder has, if that is less. Reasons stay."""

    def row(match: re.Match[str]) -> str:
        before = int(match["lines"])
        return f'    "{match["folder"]}": {min(before, lines.get(match["folder"], before)):_},'

    return ROW.sub(row, table)


def main() -> None:
    before, lines = TABLE.read_text(), lines_by_folder()
    TABLE.write_text(lowered(before, lines))
    rows = {match["folder"]: int(match["lines"]) for match in ROW.finditer(before)}
    for folder in sorted({*rows, *lines}):
        row, now = rows.get(folder, 0), lines.get(folder, 0)
        print(
            f"{folder:26}{row:8,} →{now:8,}" + ("  exceeded: shorten the folder, or raise the row" if now > row else "")
        )
    print(f"{'all':26}{sum(rows.values()):8,} →{sum(lines.values()):8,}")


if __name__ == "__main__":
    main()
