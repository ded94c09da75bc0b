"""Which container runtimes give a container the devices of its claims (Container Device Interface), by the version that
a Node reports: `containerd://2.2.1`."""

import re

_VERSION = re.compile(r"([a-z0-9-]+)://v?([0-9]+)\.([0-9]+)")
_CONTAINERD = (1, 7)
"""Older ones drop what claims ask for, in silence."""


def why_no_cdi(runtime_version: str) -> str:
    """Why the container runtime of a node cannot hand over the GPUs of claims; empty if it can, or may."""
    match = _VERSION.match(runtime_version)
    if match is None:
        return f"its container runtime says its version in a way that is not known: {runtime_version!r}"
    name, version = match.group(1), (int(match.group(2)), int(match.group(3)))
    if name == "containerd" and version < _CONTAINERD:
        return f"{runtime_version} ignores the devices of claims; containerd 1.7 with enable_cdi, or 2.0, is needed"
    return ""
