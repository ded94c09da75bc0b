"""The glossary has each term once, and the terms of the ledger are in it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()

NOT_A_TERM = {"LedgerError": "a defect of ours; nobody meets it but a developer"}

INSIDE_ANOTHER_ENTRY = re.compile(r"\*([a-z -]+)\*")
"""A term that is explained with another one stands in italics there."""


def terms() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.MULTILINE)
    return [row.strip().lower() for row in rows if row.strip() not in ("term", "---")]


def words(class_name: str) -> str:
    """`FilterResult` → `filter result`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", class_name).lower()


def test_each_term_stands_once() -> None:
    found = terms()

    assert len(found) > 60
    assert sorted(found) == sorted(set(found))


def test_every_term_has_a_meaning_and_a_word_of_others() -> None:
    rows = [line.strip("| ").split(" | ") for line in GLOSSARY.splitlines() if line.startswith("| ")]

    assert not [row for row in rows if len(row) != 3 or not all(cell.strip() for cell in row)]


def test_every_public_class_of_the_ledger_is_in_it() -> None:
    explained = {*terms(), *INSIDE_ANOTHER_ENTRY.findall(GLOSSARY)}
    classes = [
        node.name
        for path in (ROOT / "src" / "carrel" / "ledger").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]

    assert not [name for name in classes if name not in NOT_A_TERM and not _is_explained(words(name), explained)]


def _is_explained(term: str, explained: set[str]) -> bool:
    """Also by a longer term with the same beginning: `Waiting` is a waiting pod."""
    return any(each == term or each.startswith(f"{term} ") for each in explained)
