"""Settings for all tests. `HYPOTHESIS_PROFILE=thorough make test` searches much longer."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# No deadlines: the machine may be shared, and a slow example is not a wrong one.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n logical`: a worker for each core, for tests that compute. `-n auto`: three, because many tests wait for
    processes, and the others compute meanwhile."""
    return len(os.sched_getaffinity(0)) * (1 if config.option.numprocesses == "logical" else 3)


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of tests and all of their modules live until the end: a third of the CPU time went into looking at them
    again for garbage."""
    gc.freeze()
    gc.enable()
