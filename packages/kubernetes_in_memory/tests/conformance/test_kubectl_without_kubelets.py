"""What kubectl asks of a kubelet. The embedded API has none, and says so."""

from collections.abc import Callable

import pytest

from packages.kubernetes_in_memory.tests.conformance.manifests import pod
from packages.kubernetes_in_memory.tests.conformance.test_kubectl import Kubectl, kubectl, lab

__all__ = ["kubectl", "lab"]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("logs", "train"), id="logs"),
        pytest.param(("logs", "train", "--follow"), id="logs, as they come"),
        pytest.param(("exec", "train", "--", "ls"), id="a command in the container"),
        pytest.param(("attach", "train"), id="the container's terminal"),
    ],
)
def test_requests_for_a_kubelet_are_refused_with_a_reason(
    kubectl: Kubectl, lab: Callable[..., str], unique: str, command: tuple[str, ...]
) -> None:
    lab("apply", "-f", "-", given=pod(unique))
    told = kubectl.refused("-n", unique, *command)
    assert "needs a kubelet, and the embedded API has none" in told


def test_logs_of_an_absent_pod_are_not_found(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    assert 'pods "train" not found' in kubectl.refused("-n", unique, "logs", "train")
