"""Whose pod it is.

In this order: the user of the hub, if a configured spawner creates the pod and says for whom; the user who creates it,
unless that is a machine (a controller, a ServiceAccount, a kubelet); the owner of the namespace, if an admin wrote one
on it. The empty name means that the pod has no owner.

A user of the hub is the person under whose address they book (`dialects.jupyter`), or whom the spawner names by
`carrel.dev/hub-address`. A ServiceAccount that is no configured spawner, but creates pods for users of a hub, is most
likely a hub that an admin has forgotten. Its pods have no owner, whoever owns the namespace: they are somebody else's,
or forged. An admin is told which option is missing.
"""

import logging
from typing import NamedTuple

from carrel.admission.options import AdmissionOptions
from carrel.admission.review import AdmissionRequest
from carrel.dialects.carrel import HUB_ADDRESS, UNLISTED_SPAWNER, USER
from carrel.dialects.jupyter import is_of_a_hub, username_of
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.kubernetes.store import Store
from carrel.parsing.addresses import is_address, is_user_name, normal
from carrel.parsing.malformed import Malformed

log = logging.getLogger(__name__)

MACHINES = "system:"
"""How Kubernetes' own user names begin, also those of ServiceAccounts. No person's name may begin so."""
ACCOUNTS = "system:serviceaccount:"
CONTROLLERS = f"{ACCOUNTS}kube-system:"
"""Kubernetes' own controllers, which create the pods of Jobs and ReplicaSets as their templates say."""


class PodOwner(NamedTuple):
    name: str
    """Empty: nobody's."""
    unlisted_spawner: str = ""
    """The account that created it for a user of a hub, and is no configured spawner."""
    unmatched_user: str = ""
    """The user of the hub, if no address is known under which they book."""
    hub_address: str = ""
    """What a configured spawner wrote in `carrel.dev/hub-address`."""

    def notes(self) -> dict[str, str]:
        """What is written about it on the pod."""
        notes = {USER: self.name, UNLISTED_SPAWNER: self.unlisted_spawner, HUB_ADDRESS: self.hub_address}
        return {key: value for key, value in notes.items() if value}

    @property
    def warning(self) -> str:
        """For whoever sees the answer; empty if there is none."""
        if self.unlisted_spawner:
            return (
                f"{self.unlisted_spawner} created this pod for a user of a hub, but is not in --spawners of"
                " carrel webhook, so Carrel does not believe for whom, and no booking covers the pod"
            )
        if self.unmatched_user:
            return (
                f"no address is known of the hub's user {self.unmatched_user}, so no booking under an address covers"
                " this pod; an admin can set --username-domain or --hub-users"
            )
        return "" if self.name else "Carrel cannot tell who owns this pod, so no booking covers it"


class PodOwnerLookup:
    def __init__(self, namespaces: Store[Namespace], options: AdmissionOptions) -> None:
        self._namespaces = namespaces
        self._options = options

    def owner_of(self, request: AdmissionRequest, pod: Pod) -> PodOwner:
        creator = request.user.name
        if creator in self._options.spawners:
            owner = self._spawned_for(pod) or self._owner_of_namespace(request.namespace)
            return owner._replace(hub_address=pod.metadata.annotations.get(HUB_ADDRESS, ""))
        if creator and not creator.startswith(MACHINES):
            return PodOwner(creator.removeprefix(self._options.username_prefix))
        if is_of_a_hub(pod) and creator.startswith(ACCOUNTS) and not creator.startswith(CONTROLLERS):
            return PodOwner("", unlisted_spawner=creator)
        return self._owner_of_namespace(request.namespace)

    def _owner_of_namespace(self, namespace: str) -> PodOwner:
        found = self._namespaces.get(namespace)
        owner = found.metadata.annotations.get(self._options.owner_annotation, "").strip() if found else ""
        return PodOwner(owner if is_user_name(owner) else "")

    def _spawned_for(self, pod: Pod) -> PodOwner | None:
        """None: the spawner does not say for whom, or not in a way that can be read."""
        address = normal(pod.metadata.annotations.get(HUB_ADDRESS, ""))
        if is_address(address):
            return PodOwner(address)
        try:
            user = username_of(pod)
        except Malformed as malformed:
            log.warning("spawned_pod_without_user why=%r", str(malformed))
            return None
        if not user:
            return None
        people = self._options.hub_people
        return PodOwner(people.person_of(user), unmatched_user="" if people.matches(user) else user)
