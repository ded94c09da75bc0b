"""Every field of the configuration says what it means, and has an example that can be read."""

import pytest
import yaml

from carrel.configuration.fields import Change
from carrel.configuration.reading import Leaf, Unusable, every_field, may_people_change, read, with_value
from carrel.configuration.reasons import reasons
from carrel.configuration.schema import Configuration

FIELDS = list(every_field(Configuration()))
EXPLAIN_THEMSELVES = {
    "bookings.signIn.oidc.emailClaim",
    "bookings.signIn.oidc.groupsClaim",
    "bookings.signIn.sessionTime",
    "bookings.signIn.tokenTime",
    "bookings.roles.memberGroups",
    "bookings.roles.labAdminGroups",
    "bookings.roles.platformAdminGroups",
    "bookings.roles.labAdmins",
}
"""Their help says all there is to say."""


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.path)
def test_a_field_has_a_meaning_and_a_reason(field: Leaf) -> None:
    assert field.info.help.endswith(".") and len(field.info.help) > 10
    assert (field.path in reasons()) != (field.path in EXPLAIN_THEMSELVES)


@pytest.mark.parametrize("field", [each for each in FIELDS if each.info.example], ids=lambda field: field.path)
def test_an_example_can_be_read(field: Leaf) -> None:
    content = with_value({}, field.path, yaml.safe_load(field.info.example))
    try:
        made = read(yaml.safe_dump(content))
    except Unusable as unusable:  # alone it may lack something, but nothing that names it as another kind of value
        assert all("needs" in each for each in unusable.mistakes), unusable.mistakes
    else:
        (changed,) = [each for each in every_field(made) if each.value != each.default]
        assert changed.path == field.path, "the example is another value than the default"


@pytest.mark.parametrize(
    "field", [each for each in FIELDS if each.default in ("", [], {})], ids=lambda field: field.path
)
def test_a_field_that_is_empty_by_default_has_an_example(field: Leaf) -> None:
    assert field.info.example or field.path == "bookings.signIn.tokenAudience"


@pytest.mark.parametrize(
    "field", [each for each in FIELDS if may_people_change(each.path)], ids=lambda field: field.path
)
def test_what_people_change_never_waits_for_free_gpus(field: Leaf) -> None:
    assert field.info.change is not Change.WHEN_FREE


def test_the_default_is_within_the_limits() -> None:
    for field in FIELDS:
        content = with_value({}, field.path, field.default)
        assert not content or read(yaml.safe_dump(content)) == Configuration(), field.path
