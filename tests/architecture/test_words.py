"""One word per thing, and the usual word."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

METAPHORS = re.compile(
    r"Barracks|Musters?|Court|House|Manners|Cabinet|Scene|Witness(es)?|Archive|Errands?|Surroundings|Books|Desk|Badges?"
    r"|Customs|Premises|despair|stands_back|homeless|dressed|door|sieve|letters"
)
"""Words that once stood for a component, a setting, a store, a message."""

PROSE = re.compile(r"\b(doors?|desks?|musters?|barracks|cabinets?|manners)\b", re.IGNORECASE)
"""The same words in sentences: a process is a component."""

CARD = re.compile(r"(?<!wild)(?<!dis)card(?!inal)", re.IGNORECASE)
"""A second word for a GPU, also as a part of a name."""

OFFER = re.compile("offer", re.IGNORECASE)
"""The GPUs that the extender promises to a pod before its bind, and nothing else."""


@pytest.mark.parametrize(
    "source",
    [SOURCE, ROOT / "packages" / "kubernetes_in_memory" / "src"],
    ids=lambda source: source.relative_to(ROOT).as_posix(),
)
def test_no_two_classes_of_a_package_have_one_name(source: Path) -> None:
    places = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        if "_pb2" not in path.name:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(path.relative_to(source).as_posix())

    assert places
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_class_function_or_module_has_a_metaphor_for_a_name() -> None:
    wrong = []
    for path in sorted((SOURCE / "carrel").rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if "migrations/versions" in place:
            continue  # a migration that was released keeps its name
        names = [path.stem]
        names += [
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        wrong += [f"{place}: {name}" for name in names if any(METAPHORS.fullmatch(word) for word in words(name))]
    assert not wrong


def words(name: str) -> list[str]:
    """`ReviewDesk` → Review, Desk; `stands_back` → itself, stands, back."""
    return [name, *re.findall(r"[A-Z][a-z]+|[a-z]+", name)]


def test_neither_code_nor_documents_speak_of_doors_and_desks() -> None:
    texts = [*sorted((SOURCE / "carrel").rglob("*.py")), *DOCUMENTS]
    wrong = [
        f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PROSE.search(line)
    ]

    assert not wrong


def lines_with(word: re.Pattern[str], paths: Iterable[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate([path.name, *path.read_text().splitlines()])
        if word.search(line)
    ]


def test_a_gpu_has_one_name_in_code_and_documents() -> None:
    templates = [
        *(ROOT / "charts").rglob("*.tpl"),
        *(SOURCE / "carrel").rglob("*.html"),
        *(ROOT / "examples").rglob("*.yaml"),
    ]
    code = [*(SOURCE / "carrel").rglob("*.py"), *(SOURCE / "carrel").rglob("*.yaml")]
    paths = sorted(path for path in (*code, *templates, *DOCUMENTS) if path.name != "CHANGELOG.md")
    foreign = ("gpushare: card, device", "vnd.microsoft.card.adaptive", "adaptivecards.io", "AdaptiveCard")
    lines = [line for line in lines_with(CARD, paths) if not any(words in line for words in foreign)]

    assert not lines, "a card is a GPU, or an entry of the ledger"


def test_only_the_extender_makes_offers() -> None:
    code = sorted((SOURCE / "carrel").rglob("*.py"))

    assert not lines_with(OFFER, [path for path in code if path.parent.name != "scheduling"])
