"""What people may use is written where they look for it."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from carrel.__main__ import app
from carrel.kubernetes.objects.release import OLDEST
from testbed import build
from tools.reference.commands import Command, commands

ROOT = Path(__file__).parents[2]
COMMANDS = [command for command in commands() if command.name != "version"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_in_the_table_and_its_help_has_an_example(command: Command) -> None:
    table = (ROOT / "docs" / "commands.md").read_text()
    shown = CliRunner().invoke(app, [*command.name.split(), "--help"])

    assert re.search(rf"`carrel {command.name}`|`carrel [a-z, `]*`{command.name}`", table), (
        "it is not in docs/commands.md"
    )
    assert shown.exit_code == 0
    assert "".join(command.summary.split()) in "".join(shown.output.split())  # lines may break at a hyphen
    assert f"carrel {command.name}" in command.examples or not command.is_ours


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    documents = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]

    assert not [document for document in documents if f"({document})" not in index and document != "README.md"]


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    assert "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text()


def test_every_make_task_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    tasks = set(phony[1].split())

    assert tasks == set(re.findall(r"^([a-z0-9-]+):.*## \S", text, re.MULTILINE))


def test_every_folder_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = [package.parent.name for package in (ROOT / "src" / "carrel").glob("*/__init__.py")]

    assert not [folder for folder in folders if f"`{folder}/`" not in text]


def test_a_commit_passes_what_is_checked_before_a_merge() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]

    assert [hook["entry"] for hook in hooks] == ["make check"]
    assert "make check" in (ROOT / ".ci" / "run").read_text()


def test_decisions_are_numbered_dated_and_one_page() -> None:
    pages = sorted((ROOT / "decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]

    # A number may be missing: work that goes on beside this one has taken it.
    assert numbers == sorted(set(numbers))
    for page in pages:
        lines = page.read_text().splitlines()
        assert re.fullmatch(rf"# {int(page.name[:4])}\. .+", lines[0])
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", lines[1])
        assert len(lines) <= 60


def test_the_supported_releases_of_kubernetes_are_those_that_are_checked_and_tested() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text()
    oldest = ".".join(map(str, OLDEST))
    pinned = sorted(folder.name.removeprefix("kubernetes-") for folder in build.MODULES.glob("kubernetes-*"))

    assert f"At least {oldest}." in text
    assert build.RELEASE in pinned
    assert not [release for release in pinned if release not in text]
