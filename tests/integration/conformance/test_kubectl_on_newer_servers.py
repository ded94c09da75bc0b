"""What kubectl does only with servers newer than 1.20, the release of the end-to-end tests. The rest runs on both."""

from collections.abc import Callable

from tests.integration.conformance.test_kubectl import Kubectl, kubectl, lab

__all__ = ["kubectl", "lab"]


def test_a_disruption_budget_is_made(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    """policy/v1 came with 1.21, and kubectl speaks nothing older."""
    lab("create", "pdb", "web", "--selector=app=web", "--min-available=50%")
    assert kubectl.json("-n", unique, "get", "pdb", "web")["spec"] == {
        "minAvailable": "50%",
        "selector": {"matchLabels": {"app": "web"}},
    }
