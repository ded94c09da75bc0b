"""Kubernetes manifests that Carrel brings along: its custom resource definitions, and what each door may do."""

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


def _documents(file: str) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all((files(__name__) / file).read_text())
