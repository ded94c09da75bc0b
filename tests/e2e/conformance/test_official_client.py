from packages.kubernetes_in_memory.tests.conformance.test_official_client import *  # noqa: F403 (every test and fixture of it)
