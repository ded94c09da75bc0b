"""Kubernetes manifests that Carrel brings along: its custom resource definitions."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import yaml


def crds() -> Iterator[dict[str, Any]]:
    """GpuClaim and GpuNodeStatus."""
    yield from yaml.safe_load_all((files(__name__) / "crds.yaml").read_text())
