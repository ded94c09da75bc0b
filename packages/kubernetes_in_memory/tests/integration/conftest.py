import pytest

from packages.kubernetes_in_memory.tests.integration.caller import Caller, embedded


@pytest.fixture
def call() -> Caller:
    """A fresh API, called as its administrator."""
    return embedded()
