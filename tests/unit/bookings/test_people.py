"""What is an e-mail address, and what a person may do."""

import pytest

from carrel.bookings.notifications.settings import NotificationSettings, mistakes_in_notifications
from carrel.bookings.people import LONGEST_ADDRESS, Person, Role, Scope, is_address, normal


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
        pytest.param("", False, id="nothing"),
        pytest.param("a" * (LONGEST_ADDRESS - 6) + "@x.org", True, id="as long as allowed"),
        pytest.param("a" * (LONGEST_ADDRESS - 5) + "@x.org", False, id="too long"),
    ],
)
def test_what_is_an_address(text: str, expected: bool) -> None:
    assert is_address(text) is expected


def test_addresses_are_compared_in_lower_case() -> None:
    assert normal(" Ada@Lab.org ") == "ada@lab.org"


@pytest.mark.parametrize(
    ("sender", "is_refused"),
    [("carrel@lab.org", False), ("Carrel <carrel@lab.org>", False), ("a b@x", True), ("Carrel", True), ("", True)],
)
def test_the_sender_of_mails_is_an_address(sender: str, is_refused: bool) -> None:
    settings = NotificationSettings(smtp_url="smtps://mail.lab.org", mail_from=sender)

    assert bool(list(mistakes_in_notifications(settings))) is is_refused


def test_a_token_gives_a_role_only_within_its_scopes() -> None:
    admin = Person("eva@lab.org", roles=frozenset({Role.LAB_ADMIN}))
    with_token = Person("eva@lab.org", roles=frozenset({Role.LAB_ADMIN}), scopes=frozenset({Scope.READ}))

    assert (admin.is_lab_admin, admin.may_book) == (True, True)
    assert (with_token.is_lab_admin, with_token.may_book) == (False, False)
