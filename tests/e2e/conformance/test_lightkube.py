from tests.kubernetes_in_memory.conformance.test_lightkube import *  # noqa: F403 (every test and fixture of it)
