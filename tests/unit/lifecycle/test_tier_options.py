"""How long a pod may stay after it was told that it loses its GPU."""

from datetime import timedelta

import pytest

from carrel.kubernetes.objects.kinds import Metadata, Namespace
from carrel.lifecycle.tier_options import TierOptions
from tests.kit.objects import pod

NOTEBOOK = pod(labels={"hub.jupyter.org/username": "ada"})
OTHER = pod()
GRACE = TierOptions(frozenset(), grace=timedelta(seconds=10), notebook_grace=timedelta(seconds=120))


def lab(text: str) -> Namespace:
    return Namespace(metadata=Metadata(name="lab", annotations={"carrel.dev/revocation-grace": text}))


def test_a_notebook_has_more_time_than_other_pods() -> None:
    assert GRACE.grace_of(NOTEBOOK, None) == timedelta(minutes=2)
    assert GRACE.grace_of(pod(annotations={"hub.jupyter.org/username": "ada"}), None) == timedelta(minutes=2)
    assert GRACE.grace_of(OTHER, None) == timedelta(seconds=10)


def test_the_longer_of_the_two_counts_for_notebooks() -> None:
    options = TierOptions(frozenset(), grace=timedelta(minutes=5), notebook_grace=timedelta(minutes=2))
    assert options.grace_of(NOTEBOOK, None) == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("5m", 5), ("300s", 5), ("0s", 0), (" 5m ", 5), ("1h", 60), ("999999h", 60)],
    ids=["minutes", "seconds", "none at all", "with blanks", "an hour", "more than the longest"],
)
def test_an_admins_word_counts_for_all_pods_of_the_namespace(text: str, minutes: int) -> None:
    assert GRACE.grace_of(OTHER, lab(text)) == timedelta(minutes=minutes)
    assert GRACE.grace_of(NOTEBOOK, lab(text)) == timedelta(minutes=minutes)


@pytest.mark.parametrize("text", ["5", "5 minutes", "-5m", "5m30s", "٥m", "1e3s", ""], ids=repr)
def test_a_word_that_cannot_be_read_changes_nothing(text: str) -> None:
    assert GRACE.grace_of(OTHER, lab(text)) == timedelta(seconds=10)
    assert GRACE.grace_of(NOTEBOOK, lab(text)) == timedelta(minutes=2)
