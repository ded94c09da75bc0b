"""Who a pod belongs to: somebody whose word counts has to say it.

JupyterHub's mark is believed only in what a configured spawner makes; else it is who asks, unless that is a machine (a
controller, a ServiceAccount, a kubelet); else the owner of the namespace, if an admin wrote one on it. Nobody is the
empty name.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from carrel.admission.review import AdmissionRequest, User
from carrel.dialects.jupyter import username_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing.malformed import Malformed

log = logging.getLogger(__name__)

MACHINES = "system:"
"""How Kubernetes' own names begin, those of ServiceAccounts among them. No person's may."""


@dataclass(frozen=True, slots=True)
class Introduction:
    carrel_namespace: str
    """Whoever runs there is Carrel: nobody else may make ServiceAccounts in it."""
    owner_of: Callable[[str], str]
    """Of a namespace."""
    trusted: frozenset[str] = frozenset()
    """Besides Carrel's own ServiceAccounts."""
    spawners: frozenset[str] = frozenset()
    """Who makes pods for others, and says for whom."""
    username_prefix: str = ""
    """What the API server puts before the names of people, as `oidc:`."""

    def __call__(self, request: AdmissionRequest, pod: Pod) -> str:
        if request.user.name in self.spawners and (user := _named_by(pod)):
            return user
        if request.user.name and not request.user.name.startswith(MACHINES):
            return request.user.name.removeprefix(self.username_prefix)
        return self.owner_of(request.namespace)

    def is_carrel(self, user: User) -> bool:
        return user.name.startswith(f"{MACHINES}serviceaccount:{self.carrel_namespace}:") or user.name in self.trusted


def _named_by(pod: Pod) -> str:
    try:
        return username_of(pod)
    except Malformed as malformed:
        log.warning("spawned_for_nobody why=%r", str(malformed))
        return ""
