"""The configuration file with which kube-scheduler asks Carrel.

One profile, `gpu-scheduler`, and one for each scheduler of a peer whose place Carrel takes: the webhook sends GPU pods
to `gpu-scheduler`, but a pod that names `kai-scheduler` and asks for no GPU would wait for ever if nobody served that
name. All have one extender. It has no `managedResources`: with them kube-scheduler would ask only
about pods that name such a resource in their limits, and the dialects that use annotations (claims, fractions, Carrel's
own) name none. So kube-scheduler asks the extender about every pod of the profile, and the extender accepts every node
for a pod that asks for no GPU. Such pods should use another profile, which costs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from carrel.dialects.registry import ALL

PROFILE = "gpu-scheduler"
PREFIX = "/carrel"
CPU_PROFILE = "carrel-cpu"
"""For pods without a GPU that an admin wants to be placed where they keep no GPU from being used."""
LONGEST_GANG_S = 120
"""How long the binds of a gang's first members wait for the others: kube-scheduler may try a pod only once a minute."""
TIMEOUT_S = LONGEST_GANG_S + 15
"""How long kube-scheduler waits for an answer: longer than a gang may take, and the writes of a bind after that."""
CPU_TIMEOUT_S = 2
"""A pod without a GPU need not wait for Carrel: its score is an advice."""
WEIGHT = 5
"""Of the extender's score among the scheduler's own, which have weight 1 to 3: for these pods GPUs matter most."""


PEERS_SERVED = tuple(sorted(ALL.scheduler_names - {PROFILE}))


@dataclass(frozen=True, slots=True)
class Extender:
    url: str
    """Without the prefix: `http://127.0.0.1:39999`."""
    secret: str = ""
    """The extender's path secret; empty: none. It is written as the password of the address: kube-scheduler writes the
    address into the Events of pods while the extender does not answer, and leaves the password out."""
    tls: Mapping[str, str] = field(default_factory=dict)
    """kube-scheduler's `tlsConfig`: `caFile`, `certFile`, `keyFile`."""

    @property
    def url_prefix(self) -> str:
        where = urlsplit(self.url.rstrip("/"))
        place = f"carrel:{self.secret}@{where.netloc}" if self.secret else where.netloc
        return f"{where.scheme}://{place}{where.path}{PREFIX}"


def scheduler_config(extender: Extender, kubeconfig: str = "", peers: Sequence[str] = PEERS_SERVED) -> dict[str, Any]:
    """`peers` are the schedulers of others that do not run in the cluster, and are served as well."""
    connection = {"clientConnection": {"kubeconfig": kubeconfig}} if kubeconfig else {}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **connection,
        # Several kube-schedulers can run side by side only if each has a Lease of its own.
        "leaderElection": {"leaderElect": True, "resourceName": PROFILE},
        "profiles": [{"schedulerName": name} for name in (PROFILE, *peers)],
        "extenders": [
            {
                "urlPrefix": extender.url_prefix,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": WEIGHT,
                "nodeCacheCapable": True,
                "enableHTTPS": extender.url.startswith("https:"),
                **({"tlsConfig": dict(extender.tls)} if extender.tls else {}),
                "httpTimeout": f"{TIMEOUT_S}s",
                # A GPU pod that is placed without asking Carrel would use a GPU that another pod holds.
                "ignorable": False,
            }
        ],
    }


def cpu_scheduler_config(extender: Extender, kubeconfig: str = "") -> dict[str, Any]:
    """The configuration of another kube-scheduler, for pods without a GPU: an extender is asked about the pods of all
    profiles, and these pods must not depend on Carrel. It only asks for scores, and goes on without them."""
    connection = {"clientConnection": {"kubeconfig": kubeconfig}} if kubeconfig else {}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **connection,
        "leaderElection": {"leaderElect": True, "resourceName": CPU_PROFILE},
        "profiles": [{"schedulerName": CPU_PROFILE}],
        "extenders": [
            {
                "urlPrefix": extender.url_prefix,
                "prioritizeVerb": "prioritize",
                "weight": WEIGHT,
                "nodeCacheCapable": True,
                "enableHTTPS": extender.url.startswith("https:"),
                **({"tlsConfig": dict(extender.tls)} if extender.tls else {}),
                "httpTimeout": f"{CPU_TIMEOUT_S}s",
                "ignorable": True,
            }
        ],
    }
