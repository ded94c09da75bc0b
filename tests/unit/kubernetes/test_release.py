"""Which Kubernetes Carrel runs on."""

from typing import Any

import pytest

from carrel.kubernetes.objects.release import read_release, why_unsupported
from carrel.parsing import Malformed


@pytest.mark.parametrize(
    ("said", "release"),
    [
        pytest.param({"major": "1", "minor": "37", "gitVersion": "v1.37.1"}, (1, 37), id="a server built from source"),
        pytest.param({"major": "1", "minor": "35+"}, (1, 35), id="a hosted server"),
        pytest.param({"major": "2", "minor": "0"}, (2, 0), id="what may come"),
    ],
)
def test_a_server_says_which_release_it_is(said: dict[str, Any], release: tuple[int, int]) -> None:
    assert read_release(said) == release


@pytest.mark.parametrize("said", [{}, {"major": "1"}, {"major": "1", "minor": ""}, {"major": "one", "minor": "x"}])
def test_something_that_is_not_kubernetes_is_reported(said: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="the API server"):
        read_release(said)


@pytest.mark.parametrize("release", [(1, 33), (1, 37), (1, 99), (2, 0)])
def test_every_release_from_1_33_on_is_supported(release: tuple[int, int]) -> None:
    assert why_unsupported(release) == ""


@pytest.mark.parametrize("release", [(1, 32), (1, 20), (0, 99)])
def test_an_older_release_is_refused_with_the_oldest_supported_one(release: tuple[int, int]) -> None:
    major, minor = release
    assert why_unsupported(release) == f"the API server is Kubernetes {major}.{minor}; Carrel needs 1.33 or newer"
