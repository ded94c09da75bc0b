from tests.integration.conformance.test_official_client import *  # noqa: F403 (every test and fixture of it)
