"""Whose pod it is.

In this order: the user in JupyterHub's label, if a configured spawner creates the pod; the user who creates it, unless
that is a machine (a controller, a ServiceAccount, a kubelet); the owner of the namespace, if an admin wrote one on it.
The empty name means that the pod has no owner.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from carrel.admission.review import AdmissionRequest, RequestUser
from carrel.dialects.jupyter import username_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing.malformed import Malformed

log = logging.getLogger(__name__)

MACHINES = "system:"
"""How Kubernetes' own user names begin, also those of ServiceAccounts. No person's name may begin so."""

CONTROLLER = "carrel-controller"
"""The one ServiceAccount of Carrel that creates pods: successors on CPU, and reservation pods. As in `manifests/`."""


@dataclass(frozen=True, slots=True)
class PodOwnerLookup:
    carrel_namespace: str
    namespace_owner: Callable[[str], str]
    trusted: frozenset[str] = frozenset()
    """Users who count as Carrel, besides its controller."""
    spawners: frozenset[str] = frozenset()
    """Users who create pods for other people, and say for whom."""
    username_prefix: str = ""
    """What the API server puts before the names of people, as `oidc:`."""

    def owner_of(self, request: AdmissionRequest, pod: Pod) -> str:
        if request.user.name in self.spawners and (user := _labelled_user(pod)):
            return user
        if request.user.name and not request.user.name.startswith(MACHINES):
            return request.user.name.removeprefix(self.username_prefix)
        return self.namespace_owner(request.namespace)

    def is_carrel(self, user: RequestUser) -> bool:
        """Whether it is one who makes pods for Carrel. Another program in Carrel's namespace, such as MAIA's own
        terminator, is not: a pod that it makes could keep the GPU of the pod that it was copied from."""
        ours = f"{MACHINES}serviceaccount:{self.carrel_namespace}:{CONTROLLER}"
        return user.name == ours or user.name in self.trusted


def _labelled_user(pod: Pod) -> str:
    try:
        return username_of(pod)
    except Malformed as malformed:
        log.warning("spawned_pod_without_user why=%r", str(malformed))
        return ""
