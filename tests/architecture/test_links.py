"""The documents name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`([a-z_/]+/[a-z_/]*(?:\.(?:py|yaml|md))?)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(document: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(document.read_text()) if "://" not in link]

    assert not [link for link in links if link and not (document.parent / link).exists()]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_path_in_the_guides_for_developers_exists(name: str) -> None:
    paths = PATH.findall((ROOT / name).read_text())

    assert paths
    assert not [path for path in paths if not (ROOT / path).exists() and not (ROOT / "src" / "carrel" / path).exists()]
