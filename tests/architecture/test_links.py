"""The documents name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "decisions"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *DECISIONS.glob("*.md")])
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


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_module_that_the_guides_name_without_a_folder_exists(name: str) -> None:
    """As `settings.py` of a component, or the file of a folder that stands beside it."""
    modules = {path.name for folder in ("src/carrel", "tools") for path in (ROOT / folder).rglob("*.py")}
    named = re.findall(r"`(\w+\.py)`", (ROOT / name).read_text())

    assert named
    assert not [module for module in named if module not in modules]


def listed_decisions() -> list[tuple[str, str, str]]:
    """Page, decision and status of each row."""
    rows = re.findall(
        r"^\| \[(\d+)\]\((\S+)\) \| (.+) \| (.+) \|$", (DECISIONS / "README.md").read_text(), re.MULTILINE
    )
    assert all(page.startswith(f"{int(number):04}-") for number, page, _, _ in rows)
    return [(page, decision, status) for _, page, decision, status in rows]


def test_every_decision_is_listed_once_in_the_order_of_the_numbers() -> None:
    pages = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))

    assert [page for page, _, _ in listed_decisions()] == pages
    assert {page: DECISIONS.joinpath(page).read_text().split(".")[0] for page in pages} == {
        page: f"# {int(page[:4])}" for page in pages
    }


def test_a_decision_holds_or_its_page_says_first_what_took_its_place() -> None:
    over = [(page, status) for page, _, status in listed_decisions() if not status.startswith("holds")]

    assert over
    for page, status in over:
        word, first = status.split()[0], DECISIONS.joinpath(page).read_text().splitlines()[3]  # after title and date
        assert word in ("superseded", "merged") and first.lower().startswith(f"> {word} "), page
