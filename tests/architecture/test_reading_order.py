"""The `__init__.py` of a folder says in which order to read its modules: each once, and none that is not there.

A line of a reading order has names, at least two spaces, and what they are for. A folder is named with or without a
slash. Lines that go on from the one above are indented further.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", ROOT / "packages" / "kubernetes_in_memory" / "src")
PACKAGES = [path.parent for source in SOURCES for path in sorted(source.rglob("__init__.py"))]
NAMES = r"\w+/?(?: \w+/?)*"
ROW = re.compile(rf"^(?: {{4}}(?P<indented>{NAMES})(?: {{2,}}\S.*)?|(?P<names>{NAMES}) {{2,}}\S.*)$")


def parts(package: Path) -> set[str]:
    """Return its modules, without generated ones, and the folders that are packages too."""
    modules = {path.stem for path in package.glob("*.py") if "_pb2" not in path.name}
    return (modules | {path.parent.name for path in package.glob("*/__init__.py")}) - {"__init__"}


def named(docstring: str) -> Counter[str]:
    """Return how often each name stands in the reading order."""
    rows = [match for line in docstring.splitlines() if (match := ROW.match(line))]
    return Counter(name.rstrip("/") for row in rows for name in (row["indented"] or row["names"]).split())


def mistakes(docstring: str, wanted: set[str]) -> list[str]:
    found = named(docstring)
    return [
        *(f"{name} is missing" for name in sorted(wanted - found.keys())),
        *(f"{name} is not there" for name in sorted(found.keys() - wanted)),
        *(f"{name} stands {count} times" for name, count in sorted(found.items()) if count > 1),
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_reading_order_names_each_module_once_and_no_others(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    wanted = parts(package)

    if len(wanted) > 1 or named(docstring):
        assert mistakes(docstring, wanted) == []


def test_a_module_that_is_missing_gone_or_named_twice_is_found() -> None:
    docstring = """Carrel.

    one three/    what they are for, and
                  two
    two_old  it was here
    three
    """

    assert mistakes(docstring, {"one", "two", "three"}) == [
        "two is missing",
        "two_old is not there",
        "three stands 2 times",
    ]
