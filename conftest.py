"""Settings for all tests. `HYPOTHESIS_PROFILE=thorough make test` searches much longer."""

import gc
import os
from collections import Counter

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several tests with one name, workers run only one."""
    twice = [name for name, number in Counter(item.nodeid for item in items).items() if number > 1]
    if twice:
        raise pytest.UsageError("\n".join(["Several tests have the same name:", *twice]))


def pytest_collection_finish() -> None:
    """Thousands of tests and all of their modules live until the end: a third of the CPU time went into looking at them
    again for garbage."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # Tests make many objects and hardly any circles.
    gc.enable()
