"""What a notebook owns stays when the notebook is handed over: its Services lead to the successor, on the same address.

Kubernetes deletes what a pod owns with the pod. A pod of a hub is therefore deleted with `Orphan`: its Services and
Secrets lose their owner and stay. The Services become the successor's; if there is none, they get the old owner back,
which is gone, so Kubernetes deletes them. Secrets are left to the hub: the controller may not touch them.

Other pods own things that only make sense with them: the executors of a Spark driver, for example. They go as usual.
"""

import logging
from collections.abc import Mapping
from typing import Any

from carrel.dialects import kai
from carrel.dialects.hand_over_record import HandOver
from carrel.dialects.jupyter import USERNAME
from carrel.kubernetes.cluster import Cluster, Conflict, Forbidden, Json, NotFound, Selection, StrategicPatch
from carrel.kubernetes.objects.resources import PODS, SERVICES

log = logging.getLogger(__name__)

ORPHAN = "Orphan"
MOST_SERVICES = 100
"""They are listed in the record, which must not become too large. The others lose their owner, and stay."""


def outlives_its_pod(pod: Mapping[str, Any]) -> bool:
    """Whether what the pod owns stays.

    Not if something in the cluster has made objects for this very pod: volumes and claims from a template, which the
    successor could not use under another owner, or the ConfigMaps that KAI's tools read.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    written = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    has_generated = (
        any(volume.get("ephemeral") for volume in spec.get("volumes") or ())
        or bool(spec.get("resourceClaims"))
        or bool((pod.get("status") or {}).get("extendedResourceClaimStatus"))
        or kai.CONFIG_MAP_PREFIX in written
    )
    return USERNAME in written and not has_generated


class OwnedServices:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def of(self, pod: Mapping[str, Any]) -> dict[str, str]:
        """Name → uid of the Services that stay when the pod goes."""
        if not outlives_its_pod(pod):
            return {}
        metadata = pod["metadata"]
        try:
            found = (await self._cluster.list(SERVICES, Selection(metadata["namespace"]))).items
        except Forbidden as error:  # of roles that are older than this: no reason to keep the GPU
            log.warning("services_not_read namespace=%s: %s", metadata["namespace"], error)
            return {}
        owned = {
            each.metadata.name: each.metadata.uid
            for each in found
            if any(owner.uid == metadata["uid"] for owner in each.metadata.owner_references)
        }
        if len(owned) > MOST_SERVICES:
            pod_name = f"{metadata['namespace']}/{metadata['name']}"
            log.warning("services_left_alone pod=%s services=%d most=%d", pod_name, len(owned), MOST_SERVICES)
        return dict(sorted(owned.items())[:MOST_SERVICES])

    async def give(self, record: HandOver, uid: str) -> None:
        """To the pod of that uid, which has the name of the record's pod. May be repeated.

        Raises `ClusterError` if the API server refuses it for now.
        """
        namespace, name = record.place
        owner: Json = {"apiVersion": PODS.api_version, "kind": PODS.kind, "name": name, "uid": uid}
        for service, its_uid in record.services.items():
            # Its uid is a precondition: somebody may have made another Service of that name.
            patch = StrategicPatch({"metadata": {"uid": its_uid, "ownerReferences": [owner]}})
            try:
                await self._cluster.patch(SERVICES, service, patch, namespace)
            except NotFound:
                continue
            except Conflict:
                if await self._is_there(service, its_uid, namespace):
                    raise  # others write it at this moment
            except Forbidden as error:  # nor to keep the record for ever
                log.warning("service_not_given service=%s/%s: %s", namespace, service, error)

    async def _is_there(self, name: str, uid: str, namespace: str) -> bool:
        found = (await self._cluster.list(SERVICES, Selection(namespace, fields=f"metadata.name={name}"))).items
        return any(each.metadata.uid == uid for each in found)
