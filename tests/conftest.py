"""Settings for all tests. `HYPOTHESIS_PROFILE=thorough make test` searches fifty times as long."""

import os

from hypothesis import HealthCheck, settings

# No deadlines: the machine may be shared, and a slow example is not a wrong one.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Also of the doors that tests start as processes: a field that the API server does not know is a mistake of ours.
os.environ["CARREL_FIELD_VALIDATION"] = "Strict"
