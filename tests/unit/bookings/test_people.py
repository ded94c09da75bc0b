"""What is an e-mail address, and what a person may do."""

import pytest

from carrel.bookings.notifications.settings import NotificationSettings, mistakes_in_notifications
from carrel.bookings.people import Person, Role, Scope
from carrel.configuration.schema import Notifications
from carrel.parsing.addresses import LONGEST_ADDRESS, is_address, is_user_name, normal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("ada@lab.org", True, id="an address"),
        pytest.param("ada+gpu@x", True, id="a host without a dot"),
        pytest.param("a b@x", False, id="a space"),
        pytest.param("ada@lab.org\n", False, id="a line break"),
        pytest.param("ada\u200b@lab.org", False, id="a character that is not visible"),
        pytest.param("ada", False, id="no @"),
        pytest.param("@lab.org", False, id="no name"),
        pytest.param("ada@", False, id="no host"),
        pytest.param("ada@lab@org", False, id="two @"),
        pytest.param("ada@[?=", False, id="a host on which Python's mail library stumbles"),
        pytest.param("ada@lab.org.", False, id="a dot at the end"),
        pytest.param("ada@lab..org", False, id="two dots"),
        pytest.param("ada@-lab.org", False, id="a host that begins with a dash"),
        pytest.param("ada@xn--lb-xka.org", True, id="a host as in DNS"),
        pytest.param("", False, id="nothing"),
        pytest.param("\u0430da@lab.org", False, id="a Cyrillic a"),
        pytest.param("\u03bfla@lab.org", False, id="a Greek o"),
        pytest.param("\uff41da@lab.org", False, id="a wide a"),
        pytest.param("ada\uff20lab.org", False, id="a wide @"),
        pytest.param("ada@lab\u3002org", False, id="another dot"),
        pytest.param("\u212aim@lab.org", False, id="the sign for kelvin"),
        pytest.param("o\ufb01r@lab.org", False, id="a ligature"),
        pytest.param("a\u030asa@lab.org", False, id="a letter and a mark apart"),
        pytest.param("\u0131da@lab.org", False, id="a dotless i"),
        pytest.param("ada@l\u00e4b.org", False, id="a host that is not written as in DNS"),
        pytest.param("\u00e5sa.sj\u00f8berg@lab.org", True, id="letters of people's names"),
        pytest.param("a" * (LONGEST_ADDRESS - 6) + "@x.org", True, id="as long as allowed"),
        pytest.param("a" * (LONGEST_ADDRESS - 5) + "@x.org", False, id="too long"),
    ],
)
def test_what_is_an_address(text: str, expected: bool) -> None:
    assert is_address(text) is expected


ADA, BOB = "ada@lab.org", "bob@lab.org"
ADMIN_OF_THE_LAB = frozenset({Role.LAB_ADMIN})


@pytest.mark.parametrize(
    ("person", "people", "expected"),
    [
        pytest.param(Person(ADA), [ADA], True, id="one's own"),
        pytest.param(Person(ADA), [BOB], False, id="somebody else's"),
        pytest.param(Person(ADA), [ADA, BOB], True, id="the sum of a GPU that one shares"),
        pytest.param(Person(ADA), [], True, id="of a GPU that nobody holds"),
        pytest.param(Person(ADA), [""], False, id="of a pod without an owner"),
        pytest.param(Person(ADA, roles=ADMIN_OF_THE_LAB), [BOB], True, id="a lab admin sees everybody's"),
        pytest.param(Person(ADA, roles=frozenset({Role.PLATFORM_ADMIN})), [BOB], True, id="so does a platform admin"),
        pytest.param(
            Person(ADA, roles=ADMIN_OF_THE_LAB, scopes=frozenset({Scope.READ})),
            [BOB],
            False,
            id="an admin's credential for reading is that of a member",
        ),
        pytest.param(Person("system:hub", roles=frozenset({Role.HUB})), [BOB], False, id="a hub sees nobody's"),
    ],
)
def test_who_sees_figures_of_what_others_use_gpus_for(person: Person, people: list[str], expected: bool) -> None:
    assert person.may_see_figures_of(people) is expected


def test_addresses_are_compared_in_lower_case() -> None:
    assert normal(" Ada@Lab.org ") == "ada@lab.org"


@pytest.mark.parametrize("look_alike", ["\u212aim@lab.org", "\uff2bim@lab.org", "\u0130vy@lab.org"])
def test_lower_case_makes_no_address_of_what_only_looks_like_one(look_alike: str) -> None:
    assert not is_address(normal(look_alike)) and not is_user_name(normal(look_alike))


@pytest.mark.parametrize(
    ("sender", "is_refused"),
    [("carrel@lab.org", False), ("Carrel <carrel@lab.org>", False), ("a b@x", True), ("Carrel", True), ("", True)],
)
def test_the_sender_of_mails_is_an_address(sender: str, is_refused: bool) -> None:
    settings = NotificationSettings(smtp_url="smtps://mail.lab.org")

    assert bool(list(mistakes_in_notifications(settings, Notifications(mail_from=sender)))) is is_refused


def test_a_token_gives_a_role_only_within_its_scopes() -> None:
    admin = Person("eva@lab.org", roles=frozenset({Role.LAB_ADMIN}))
    with_token = Person("eva@lab.org", roles=frozenset({Role.LAB_ADMIN}), scopes=frozenset({Scope.READ}))

    assert (admin.is_lab_admin, admin.may_book) == (True, True)
    assert (with_token.is_lab_admin, with_token.may_book) == (False, False)
