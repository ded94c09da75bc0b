"""Kubernetes manifests that Carrel brings along: its custom resource definitions, what each door may do, and what
kube-apiserver asks the webhook."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import yaml


def crds() -> Iterator[dict[str, Any]]:
    """GpuClaim and GpuNodeStatus."""
    yield from _documents("crds.yaml")


def rbac() -> Iterator[dict[str, Any]]:
    """For each door: its ServiceAccount, its roles and their bindings."""
    yield from _documents("rbac.yaml")


def webhooks() -> Iterator[dict[str, Any]]:
    """About what kube-apiserver asks `carrel webhook`."""
    yield from _documents("webhooks.yaml")


def priority_classes() -> Iterator[dict[str, Any]]:
    """Those of the two tiers."""
    yield from _documents("priorityclasses.yaml")


def _documents(file: str) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all((files(__name__) / file).read_text())
