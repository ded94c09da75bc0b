from packages.kubernetes_in_memory.tests.conformance.test_lightkube import *  # noqa: F403 (every test and fixture of it)
