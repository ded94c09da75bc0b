from tests.kit.unit_limits import pytest_runtest_call

__all__ = ["pytest_runtest_call"]
