"""A hub's users are the people who book."""

import pytest

from carrel.configuration.reading import Unusable, read
from carrel.configuration.schema import Hubs
from carrel.dialects.jupyter import HubPeople

LAB = HubPeople("lab.example", {"al": "ada.lovelace@lab.example"})


@pytest.mark.parametrize(
    ("people", "user", "person"),
    [
        pytest.param(LAB, "bob", "bob@lab.example", id="a short name is of the domain"),
        pytest.param(LAB, "Bob ", "bob@lab.example", id="letter case and blanks do not matter"),
        pytest.param(LAB, "al", "ada.lovelace@lab.example", id="a listed name has its own address"),
        pytest.param(LAB, "eve@other.example", "eve@other.example", id="an address stays"),
        pytest.param(HubPeople(), "bob", "bob", id="without a domain a short name stays"),
        pytest.param(LAB, "", "", id="nobody"),
    ],
)
def test_who_a_user_of_the_hub_is(people: HubPeople, user: str, person: str) -> None:
    assert people.person_of(user) == person
    assert people.matches(user) == ("@" in person)


def test_listed_names_and_addresses_are_compared_without_letter_case() -> None:
    assert Hubs(users={"Al": "Ada@Lab.example"}).people().person_of("al") == "ada@lab.example"


@pytest.mark.parametrize("domain", ["lab.example", "@lab.example", "Lab.Example.", " lab.example "])
def test_a_domain_may_be_written_in_several_ways(domain: str) -> None:
    assert Hubs(username_domain=domain).people().person_of("ada") == "ada@lab.example"


@pytest.mark.parametrize(
    "text",
    [
        *(f"usernameDomain: {domain}" for domain in ("lab_hub", "b\u00fccher.example", "a@b.example", "lab..example")),
        *(f"users: {users}" for users in ("[al]", "{al: ada}", "{al: null}", '{al: "@"}')),
    ],
)
def test_what_no_address_can_have_is_refused(text: str) -> None:
    with pytest.raises(Unusable, match=r"hubs\.user.* is .*; expected"):
        read(f"hubs: {{{text}}}")
