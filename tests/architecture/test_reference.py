"""The reference says what the code says, and everything in it has a meaning. `make reference` writes it anew."""

import pytest

from tools.reference import FOLDER, PAGES, page_of
from tools.reference.commands import commands


@pytest.mark.parametrize("module", PAGES)
def test_nothing_that_people_may_use_is_undocumented(module: str) -> None:
    assert not page_of(module).undocumented


@pytest.mark.parametrize("module", PAGES)
def test_the_committed_reference_is_what_the_code_gives(module: str) -> None:
    page = page_of(module)
    committed = (FOLDER / page.name).read_text()

    assert committed == page.text, "run `make reference`, and commit what it wrote"


def test_no_option_names_itself_twice() -> None:
    names = {
        f"{command.name} {option.shown}": option.shown.split(", ")
        for command in commands()
        for option in command.options
    }

    assert names
    assert not [option for option, found in names.items() if len(found) != len(set(found))]


def test_the_reference_has_no_other_files() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(page_of(module).name for module in PAGES)
