"""Who is in a group, and which of the groups that a provider tells are kept."""

from datetime import UTC, datetime

import pytest

from carrel.bookings.groups import MOST_SEEN, GroupPerson, group_of, groups_to_keep, is_group_name, read_addresses

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ADA, BOB, EVE = "ada@lab.org", "bob@lab.org", "eve@lab.org"


def test_a_person_who_is_listed_and_seen_is_in_the_group_once() -> None:
    listed = [GroupPerson(BOB, is_manager=True), GroupPerson(ADA)]
    seen = [GroupPerson(BOB, listed=False, seen_at=NOON), GroupPerson(EVE, listed=False, seen_at=NOON)]

    group = group_of("vision", [*listed, *seen])

    assert group.people == (
        GroupPerson(ADA),
        GroupPerson(BOB, is_manager=True, seen_at=NOON),
        GroupPerson(EVE, listed=False, seen_at=NOON),
    )
    assert group.members == {ADA, BOB, EVE}
    assert group.managers == {BOB}


@pytest.mark.parametrize(
    ("name", "is_name"),
    [
        pytest.param("vision", True, id="a word"),
        pytest.param("/lab/Vision Team", True, id="a path with a space, as Keycloak writes it"),
        pytest.param("große Gruppe", True, id="other letters"),
        pytest.param("", False, id="empty"),
        pytest.param(" vision", False, id="a space that nobody sees"),
        pytest.param("vis\x00ion", False, id="a control character"),
        pytest.param("vision\u202e", False, id="a character that turns the direction of writing"),
        pytest.param("..", False, id="a step up in an address"),
        pytest.param("v" * 256, False, id="longer than its column"),
    ],
)
def test_names_of_groups(name: str, is_name: bool) -> None:
    assert is_group_name(name) is is_name


def test_groups_that_kubernetes_gives_to_everybody_and_odd_names_are_not_kept() -> None:
    assert groups_to_keep(["vision", "system:authenticated", "", "a\nb", "vision"]) == {"vision"}
    assert len(groups_to_keep([f"g{number}" for number in range(MOST_SEEN + 5)])) == MOST_SEEN


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("ada@lab.org", ("ada@lab.org",), id="one address"),
        pytest.param("  Ada@Lab.org ", ("ada@lab.org",), id="spaces and capitals"),
        pytest.param("ada@lab.org, bob@lab.org;cleo@lab.org dora@lab.org", 4, id="several in a line"),
        pytest.param("Ada Lovelace <ada@lab.org>, Bob <bob@lab.org>", 2, id="with names, as mail programs copy them"),
        pytest.param("Ada L <ada@lab.org>, bob@lab.org, Eve <eve@lab.org>", (ADA, BOB, EVE), id="names and addresses"),
        pytest.param("bob@lab.org Eve <eve@lab.org> ada@lab.org", (BOB, EVE, ADA), id="the same, without commas"),
        pytest.param('"Lovelace, Ada" <ada@lab.org>; bob@lab.org', (ADA, BOB), id="a quoted name with a comma"),
        pytest.param('"bob@lab.org" Eve <eve@lab.org>', (BOB, EVE), id="a quoted address before a name"),
        pytest.param('"a@b.org (Ada)" <ada@lab.org>', (ADA,), id="a quoted name with an address"),
        pytest.param('"ada@lab.org, bob@lab.org"', (ADA, BOB), id="several in a quoted cell"),
        pytest.param('"ada@lab.org"', ("ada@lab.org",), id="a quoted cell"),
        pytest.param("\ufeffada@lab.org", ("ada@lab.org",), id="a byte order mark"),
        pytest.param("# ada@lab.org", (), id="a comment"),
        pytest.param("", (), id="an empty line"),
        pytest.param("ada@lab.org ada@lab.org", ("ada@lab.org",), id="the same twice"),
    ],
)
def test_a_list_of_addresses_is_read_as_people_paste_it(line: str, expected: tuple[str, ...] | int) -> None:
    found = read_addresses([line])

    assert found.mistakes == ()
    assert len(found.emails) == expected if isinstance(expected, int) else found.emails == expected


def test_every_mistake_of_a_list_has_its_line_number() -> None:
    found = read_addresses(["ada@lab.org", "", "Bob", "cleo@lab.org, @lab.org", "=cmd()", "Dora <dora@lab.org>, fay"])

    assert found.emails == ("ada@lab.org", "cleo@lab.org", "dora@lab.org")
    assert [mistake.partition(":")[0] for mistake in found.mistakes] == ["Line 3", "Line 4", "Line 5", "Line 6"]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        pytest.param("Ada <>", "<>", id="a name without an address"),
        pytest.param("Lovelace, Ada <ada@lab.org>", "Lovelace", id="a name with a comma, or two people"),
        pytest.param("bob; <ada@lab.org>", "bob", id="a word before a semicolon"),
        pytest.param("<ada@lab.org> (chair)", "(chair)", id="a word behind an address"),
        pytest.param("<bob> <ada@lab.org>", "bob", id="no address in brackets"),
    ],
)
def test_a_word_that_is_neither_an_address_nor_a_name_is_a_mistake(line: str, word: str) -> None:
    found = read_addresses([line])

    assert [mistake.partition(" is ")[0] for mistake in found.mistakes] == [f"Line 1: “{word}”"]
