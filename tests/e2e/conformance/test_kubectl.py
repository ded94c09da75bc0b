from packages.kubernetes_in_memory.tests.conformance.test_kubectl import *  # noqa: F403 (every test and fixture of it)
