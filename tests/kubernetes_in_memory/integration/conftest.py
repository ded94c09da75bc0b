import pytest

from tests.kubernetes_in_memory.integration.caller import Caller, embedded


@pytest.fixture
def call() -> Caller:
    """A fresh API, called as its administrator."""
    return embedded()
