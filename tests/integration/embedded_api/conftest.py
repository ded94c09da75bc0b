import pytest

from tests.integration.embedded_api.caller import Caller, embedded


@pytest.fixture
def call() -> Caller:
    """A fresh API, called as its administrator."""
    return embedded()
