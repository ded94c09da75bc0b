"""What a pod owns stays only where somebody counts on it, and where nothing was generated for this very pod."""

from typing import Any

import pytest

from carrel.lifecycle.handing_over.successors import outlives_its_pod

OF_A_HUB = {"labels": {"hub.jupyter.org/username": "ada"}}


def test_what_a_notebook_owns_stays() -> None:
    home = {"name": "home", "persistentVolumeClaim": {"claimName": "home-ada"}}
    assert outlives_its_pod({"metadata": OF_A_HUB, "spec": {"volumes": [home]}})


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"metadata": {}, "spec": {}}, id="a pod of no hub"),
        pytest.param(
            {
                "metadata": OF_A_HUB,
                "spec": {"volumes": [{"name": "scratch", "ephemeral": {}}, {"ephemeral": {"x": 1}}]},
            },
            id="a volume that Kubernetes makes for the pod",
        ),
        pytest.param({"metadata": OF_A_HUB, "spec": {"resourceClaims": [{"name": "gpu"}]}}, id="a ResourceClaim"),
        pytest.param(
            {"metadata": OF_A_HUB, "spec": {}, "status": {"extendedResourceClaimStatus": {"resourceClaimName": "x"}}},
            id="a ResourceClaim for an extended resource",
        ),
    ],
)
def test_what_other_pods_own_goes(pod: dict[str, Any]) -> None:
    assert not outlives_its_pod(pod)
