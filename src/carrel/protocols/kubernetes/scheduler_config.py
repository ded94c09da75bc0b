"""What kube-scheduler must be told so that it asks Carrel: its configuration file, in the version it understands.

One profile, `gpu-scheduler`, with one extender. It has no `managedResources`: with them kube-scheduler would ask only
about pods that name such a resource in their limits, and the dialects that live in annotations (claims, fractions,
Carrel's own) have none. So the extender is asked about every pod of the profile, and lets through what asks for no
card. Pods that want no card should use another profile, which costs them nothing.
"""

from dataclasses import dataclass
from typing import Any

from carrel.protocols.malformed import Malformed

PROFILE = "gpu-scheduler"
PREFIX = "/carrel"
WEIGHT = 5
"""Of the extender's score among the scheduler's own, which have weight 1 to 3: cards are what these pods are about."""

_VERSIONS = ((1, 19), "v1beta1"), ((1, 22), "v1beta2"), ((1, 23), "v1beta3"), ((1, 25), "v1")
"""The first release that understands each version."""
_OLDEST = (1, 19)


@dataclass(frozen=True, slots=True)
class Extender:
    url: str
    """Without the prefix: `http://127.0.0.1:39999`."""
    timeout_s: int
    """How long kube-scheduler waits for an answer. Binds of a gang wait for each other: longer than that."""


def scheduler_config(kubernetes: str, extender: Extender, kubeconfig: str = "") -> dict[str, Any]:
    connection = {"clientConnection": {"kubeconfig": kubeconfig}} if kubeconfig else {}
    return {
        "apiVersion": f"kubescheduler.config.k8s.io/{_version_for(kubernetes)}",
        "kind": "KubeSchedulerConfiguration",
        **connection,
        # Several kube-schedulers may run beside each other only if each has a Lease of its own.
        "leaderElection": {"leaderElect": True, "resourceName": PROFILE},
        "profiles": [{"schedulerName": PROFILE}],
        "extenders": [
            {
                "urlPrefix": f"{extender.url.rstrip('/')}{PREFIX}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": WEIGHT,
                "nodeCacheCapable": True,
                "enableHTTPS": extender.url.startswith("https:"),
                "httpTimeout": f"{extender.timeout_s}s",
                # A pod that wants a card and is placed without asking would take another's.
                "ignorable": False,
            }
        ],
    }


def _version_for(kubernetes: str) -> str:
    parts = kubernetes.removeprefix("v").split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
        raise Malformed("kube-scheduler", "version", kubernetes, "a release such as 1.20 or 1.31")
    release = (int(parts[0]), int(parts[1]))
    if release < _OLDEST or release[0] != 1:
        raise Malformed("kube-scheduler", "version", kubernetes, "1.19 or newer")
    return [version for first, version in _VERSIONS if first <= release][-1]
