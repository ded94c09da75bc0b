from tests.integration.conformance.test_kubectl import *  # noqa: F403 (every test and fixture of it)
