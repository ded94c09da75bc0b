"""A real node whose GPUs ResourceClaims get, with the gate, and the cluster's own kube-scheduler."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from testbed.build import release
from tests.e2e.carrel_node import CarrelNode, a_pod, carrel_node, kubeconfig_of
from tests.e2e.pods import Json, eventually
from tests.e2e.webhook import Webhook

RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = {"resourceClaims": {"enabled": True}}

since_1_36 = pytest.mark.skipif(
    tuple(map(int, release().split(".")[:2])) < (1, 36),
    reason="memory and extended resources by claims are off before Kubernetes 1.36",
)


@contextmanager
def claim_node(name: str, gpus: Sequence[Mapping[str, Any]], admits_pods: bool = False) -> Iterator[CarrelNode]:
    """`admits_pods`: the webhook is asked about pods too, so that they get a tier."""
    with carrel_node(name, gpus, CLAIMS) as found:
        webhook = Webhook(found.api, has_claims=True)
        webhook.configure_claims()
        if admits_pods:
            webhook.configure()
        found.controller.stop()
        own = kubeconfig_of(found.api, "controller")  # with its own rights: it writes claims
        found.controller = found.start_controller("--kubeconfig", own)
        eventually(lambda: slices(found))
        yield found


def slices(carrel: CarrelNode) -> list[Json]:
    found: list[Json] = carrel.api.call("GET", f"{RESOURCES}/resourceslices")["items"]
    return found


def with_claim(name: str, claim: Mapping[str, str], **spec: Any) -> Json:
    """A pod for the cluster's own kube-scheduler, which knows nothing of Carrel."""
    manifest = a_pod(name, schedulerName="default-scheduler", resourceClaims=[{"name": "gpu", **claim}], **spec)
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return manifest
