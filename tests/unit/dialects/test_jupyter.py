"""Whose notebook a pod is."""

import pytest

from carrel.dialects import jupyter
from carrel.parsing import Malformed
from tests.kit.objects import pod

KEY = "hub.jupyter.org/username"


@pytest.mark.parametrize(
    ("label", "name"),
    [
        pytest.param("alice-40kth-2ese", "alice@kth.se", id="an address"),
        pytest.param("anna-2dlisa-40kth-2ese", "anna-lisa@kth.se", id="a dash in the name"),
        pytest.param("alice-2d40kth-2ese", "alice-40kth.se", id="the name of another person is not made of it"),
        pytest.param("alice-2d2d40kth-2ese", "alice-2d40kth.se", id="nor by escaping twice"),
        pytest.param("bj-c3-b6rn", "björn", id="a letter of two bytes"),
        pytest.param("alice-40KTH-2Ese", "alice@KTH.se", id="large hex digits"),
        pytest.param("alice", "alice", id="nothing to decode"),
        pytest.param("", "", id="nobody"),
    ],
)
def test_the_label_is_decoded_in_one_pass(label: str, name: str) -> None:
    assert jupyter.username_of(pod(labels={KEY: label})) == name


def test_the_annotation_goes_before_the_label() -> None:
    slug = {KEY: "alice-kth-se---1a2b3c4d"}
    assert jupyter.username_of(pod({KEY: "alice@kth.se"}, labels=slug)) == "alice@kth.se"


def test_a_pod_without_either_belongs_to_nobody() -> None:
    assert jupyter.username_of(pod()) == ""


@pytest.mark.parametrize(
    "label",
    [
        pytest.param("alice-kth-se---1a2b3c4d", id="a slug cannot be read back"),
        pytest.param("alice-", id="an escape without digits"),
        pytest.param("alice-4", id="an escape of one digit"),
        pytest.param("alice-zz", id="an escape that is not hex"),
        pytest.param("alice-ff", id="bytes that are not UTF-8"),
        pytest.param("alice-00", id="a byte that does not print"),
        pytest.param("alice-0aadmin", id="a second line"),
    ],
)
def test_a_label_that_cannot_be_decoded_is_malformed(label: str) -> None:
    with pytest.raises(Malformed, match=r"pod lab/train: metadata\.labels\['hub\.jupyter\.org/username'\]"):
        jupyter.username_of(pod(labels={KEY: label}))


def test_an_annotation_that_does_not_print_is_malformed() -> None:
    with pytest.raises(Malformed, match="annotations"):
        jupyter.username_of(pod({KEY: "alice\nadmin"}))


def test_a_name_is_escaped_as_kubespawner_does() -> None:
    assert jupyter.escape("anna-lisa@kth.se") == "anna-2dlisa-40kth-2ese"
