"""Who is in a group, and which of the groups that a provider tells are kept."""

from datetime import UTC, datetime

import pytest

from carrel.bookings.groups import MOST_SEEN, GroupPerson, group_of, groups_to_keep, is_group_name

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
        pytest.param("v" * 256, False, id="longer than its column"),
    ],
)
def test_names_of_groups(name: str, is_name: bool) -> None:
    assert is_group_name(name) is is_name


def test_groups_that_kubernetes_gives_to_everybody_and_odd_names_are_not_kept() -> None:
    assert groups_to_keep(["vision", "system:authenticated", "", "a\nb", "vision"]) == {"vision"}
    assert len(groups_to_keep([f"g{number}" for number in range(MOST_SEEN + 5)])) == MOST_SEEN
