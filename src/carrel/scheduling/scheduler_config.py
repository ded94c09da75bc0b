"""What kube-scheduler must be told so that it asks Carrel: its configuration file.

One profile, `gpu-scheduler`, with one extender. It has no `managedResources`: with them kube-scheduler would ask only
about pods that name such a resource in their limits, and the dialects that live in annotations (claims, fractions,
Carrel's own) have none. So the extender is asked about every pod of the profile, and lets through what asks for no
card. Pods that want no card should use another profile, which costs them nothing.
"""

from dataclasses import dataclass
from typing import Any

PROFILE = "gpu-scheduler"
PREFIX = "/carrel"
WEIGHT = 5
"""Of the extender's score among the scheduler's own, which have weight 1 to 3: cards are what these pods are about."""


@dataclass(frozen=True, slots=True)
class Extender:
    url: str
    """Without the prefix: `http://127.0.0.1:39999`."""
    timeout_s: int
    """How long kube-scheduler waits for an answer. Binds of a gang wait for each other: longer than that."""


def scheduler_config(extender: Extender, kubeconfig: str = "") -> dict[str, Any]:
    connection = {"clientConnection": {"kubeconfig": kubeconfig}} if kubeconfig else {}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
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
