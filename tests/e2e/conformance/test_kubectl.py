from tests.kubernetes_in_memory.conformance.test_kubectl import *  # noqa: F403 (every test and fixture of it)
