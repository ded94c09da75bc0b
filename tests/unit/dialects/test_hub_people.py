"""A hub's users are the people who book."""

from typing import Any

import pytest

from carrel.dialects.jupyter import HubPeople, read_addresses
from carrel.parsing.malformed import Malformed
from carrel.settings import HubSettings

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


def test_a_file_of_addresses_is_read() -> None:
    assert read_addresses({"Al": "Ada@Lab.example", 7: "bond@lab.example"}, "f") == {
        "al": "ada@lab.example",
        "7": "bond@lab.example",
    }
    assert read_addresses(None, "f") == {}


@pytest.mark.parametrize("content", [["al"], {"al": "ada"}, {"al": None}, {"al": "@"}])
def test_a_file_of_something_else_is_refused(content: Any) -> None:
    with pytest.raises(Malformed, match="expected"):
        read_addresses(content, "people.yaml")


@pytest.mark.parametrize("domain", ["lab.example", "@lab.example", "Lab.Example.", " lab.example "])
def test_a_domain_may_be_written_in_several_ways(domain: str) -> None:
    assert HubSettings(username_domain=domain).hub_people().person_of("ada") == "ada@lab.example"


@pytest.mark.parametrize("domain", ["lab_hub", "b\u00fccher.example", "a@b.example", "lab..example"])
def test_a_domain_that_no_address_can_have_is_refused_at_the_start(domain: str) -> None:
    with pytest.raises(Malformed, match=r"--username-domain is .*; expected a domain such as"):
        HubSettings(username_domain=domain).hub_people()
