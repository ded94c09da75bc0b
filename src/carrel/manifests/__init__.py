"""Carrel's Kubernetes manifests: custom resource definitions, the permissions of each component, what kube-apiserver
asks the webhook, and what it refuses by itself."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import yaml

WITH_DRA = ("claim-pods.carrel.dev", "claims.carrel.dev")
"""The entries of `webhooks.yaml` that are for clusters that count ResourceClaims only."""
DRIVER = "gpu.carrel.dev"
"""As `dra.yaml` names it."""
OF_OUR_DRIVER = ("carrel-agent-dra", "carrel-slices")
"""What of `dra.yaml` is only for agents that are the driver of claims."""
CONFIGURATIONS = ("carrel", "gpu-booking-webhook")
"""The name of the webhook configuration: in the chart carrel, and MAIA's, in the chart gpu-booking."""


def crds() -> Iterator[dict[str, Any]]:
    """GpuClaim, GpuNodeStatus and Booking."""
    yield from _documents("crds.yaml")


def rbac() -> Iterator[dict[str, Any]]:
    """For each component: its ServiceAccount, its roles and their bindings."""
    yield from _documents("rbac.yaml")


def webhooks(*, for_embedded_api: bool = False, dra: bool = False) -> Iterator[dict[str, Any]]:
    """Which pods kube-apiserver asks `carrel webhook` about: those that concern GPUs, and those that may see one; with
    `dra` also those that have ResourceClaims, and which new ResourceClaims.

    The embedded API evaluates no CEL and refuses matchConditions. Without them one entry asks about every pod, so a
    webhook that does not answer must not block all pods: there a GPU pod is created without it, and only the seal
    protects.
    """
    for configuration in _documents("webhooks.yaml"):
        if for_embedded_api:
            webhook = configuration["webhooks"][0]
            del webhook["matchConditions"]
            configuration["webhooks"] = [{**webhook, "failurePolicy": "Ignore"}]
        if not dra:
            configuration["webhooks"] = [each for each in configuration["webhooks"] if each["name"] not in WITH_DRA]
        yield configuration


def policies() -> Iterator[dict[str, Any]]:
    """What kube-apiserver refuses by itself, and the bindings that enable it. The embedded API lacks these kinds."""
    yield from _documents("policies.yaml")


def dra(*, for_embedded_api: bool = False, driver: str = DRIVER) -> Iterator[dict[str, Any]]:
    """What ResourceClaims need: who asks the gate, the DeviceClass, and permissions. The embedded API evaluates no CEL:
    there the webhook is asked about every status of a claim. For another driver there is nothing of what agents
    advertise themselves; the chart leaves out the same."""
    for document in _documents("dra.yaml"):
        for webhook in document.get("webhooks", ()):
            for condition in webhook["matchConditions"]:
                condition["expression"] = condition["expression"].replace(f"in ['{DRIVER}']", f"in ['{driver}']")
            if for_embedded_api:
                del webhook["matchConditions"]
        is_ours = document["kind"] == "DeviceClass" or document["metadata"]["name"] in OF_OUR_DRIVER
        if driver == DRIVER or not is_ours:
            yield document


def priority_classes() -> Iterator[dict[str, Any]]:
    """One for each tier."""
    yield from _documents("priorityclasses.yaml")


def _documents(file: str) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all((files(__name__) / file).read_text())
