"""What comes after a pod that loses its GPU: its successor, or the pod with which its controller replaces it.

The manifest of a successor is kept in a Secret (`dialects.hand_over_record`) until the pod is gone.

Kubernetes deletes what a pod owns with the pod. A pod of a hub is therefore deleted with `Orphan`: its Services and
Secrets lose their owner and stay. The Services become the successor's, on the same address; if there is none, they get
the old owner back, which is gone, so Kubernetes deletes them. Secrets are left to the hub: the controller may not touch
them. Other pods own things that only make sense with them: the executors of a Spark driver, for example. They go as
usual.

Anybody who may create a pod may write any owner on it: of the kinds that the controller may read, only one that exists
counts. Of other kinds it is believed; all it brings is that the pod is evicted, and not created again by Carrel.
"""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from carrel.cluster.state import ClusterState
from carrel.cluster.watches import NAMESPACE_OF
from carrel.dialects import hand_over_record, kai
from carrel.dialects.gang_makers import PLURALS
from carrel.dialects.hand_over_record import HandedOver, HandOver, successor_of
from carrel.dialects.interface import NOTHING_CLAIMED
from carrel.dialects.jupyter import USERNAME
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Cluster,
    Conflict,
    Forbidden,
    Invalid,
    Json,
    MergePatch,
    NotFound,
    Selection,
    StrategicPatch,
)
from carrel.kubernetes.objects.kinds import Object, Pod
from carrel.kubernetes.objects.resources import PODS, SECRETS, SERVICES, Resource
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from carrel.parsing.time import instant

log = logging.getLogger(__name__)

ORPHAN = "Orphan"
MOST_SERVICES = 100
"""They are listed in the record, which must not become too large. The others lose their owner, and stay."""


class Successors:
    def __init__(self, state: ClusterState, cluster: Cluster) -> None:
        """`cluster`: by which everything is written."""
        self._cluster = cluster
        self._namespace = state.options.namespace
        self._zone = state.options.zone
        self._holders = state.holders
        self._pods = state.pods.store

    # --- manifests ---------------------------------------------------------------------------------------------------

    async def keep(self, record: HandOver, written: Json, pod: Json) -> str | Refusal:
        """The name of the Secret with the successor of this version of the pod. `written`: the record's ConfigMap."""
        try:
            claimed = self._holders.claimed_by(msgspec.convert(pod, Pod))
        except msgspec.ValidationError:
            claimed = NOTHING_CLAIMED
        successor = successor_of(pod, record.why, record.lost_at, self._zone, claimed)
        secret = hand_over_record.write_manifest(successor, written, pod)
        if isinstance(secret, Refusal):
            return secret
        # If there is one already, it is of the same version of the pod.
        with contextlib.suppress(AlreadyExists):
            await self._cluster.create(SECRETS, secret, self._namespace)
        return str(secret["metadata"]["name"])

    async def manifest(self, record: HandOver) -> Json | None:
        """None: the pod gets no successor."""
        if not record.manifest:
            return None
        try:
            return hand_over_record.read_manifest(await self._cluster.get(SECRETS, record.manifest, self._namespace))
        except (NotFound, Malformed) as error:
            # Somebody has deleted or changed it. What is lost stays lost; others must not wait for it.
            log.error("successor_lost pod=%s uid=%s: %s", record.pod, record.uid, error)
            return None

    # --- what a notebook owns ----------------------------------------------------------------------------------------

    async def services_of(self, pod: Mapping[str, Any]) -> dict[str, str]:
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

    async def give_services(self, record: HandOver, uid: str) -> None:
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
                only_it = Selection(namespace, fields=f"metadata.name={service}")
                if any(each.metadata.uid == its_uid for each in (await self._cluster.list(SERVICES, only_it)).items):
                    raise  # others write it at this moment
            except Forbidden as error:  # nor to keep the record for ever
                log.warning("service_not_given service=%s/%s: %s", namespace, service, error)

    # --- pods that controllers replace -------------------------------------------------------------------------------

    async def is_replaced(self, record: HandOver) -> bool:
        """Whether its controller has replaced the record's pod.

        The webhook writes on a replacement which pod it succeeds; without the webhook there is no such mark. It does
        not know the pods. If several pods of one controller lose their GPUs at once, it may write the same pod on all
        replacements: then the second one that names it counts as the replacement of this record's pod.
        """
        pods = self._pods.find(NAMESPACE_OF, record.place[0])
        named: set[str] = set()
        spare: list[Pod] = []
        for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name)):
            if not (origin := origin_of(pod.metadata.annotations)):
                continue
            if origin in named and _is_made_for(pod, record):
                spare.append(pod)
            named.add(origin)
        return record.uid in named or (bool(spare) and await self._mark(spare[0], record))

    async def _mark(self, pod: Pod, record: HandOver) -> bool:
        """Only in the version of the cache: another record may have got it meanwhile."""
        as_seen = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        notes = hand_over_record.write_handed_over(HandedOver(record.lost_at, record.why, record.uid))
        try:
            patch = MergePatch({"metadata": {**as_seen, "annotations": notes}})
            await self._cluster.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)
        except (NotFound, Conflict):
            return False
        return True


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


def origin_of(annotations: Mapping[str, str]) -> str:
    """The uid of the pod that a pod with these annotations succeeds; empty if none."""
    try:
        mark = hand_over_record.handed_over(annotations, "pod")
    except Malformed:
        return ""
    return mark.origin if mark else ""


def _is_made_for(pod: Pod, record: HandOver) -> bool:
    """Whether the controller of the record's pod has made the pod since the hand-over was decided."""
    is_its_own = any(each.controller and each.uid == record.owner for each in pod.metadata.owner_references)
    try:
        made = instant(pod.metadata.creation_timestamp, f"pod {pod.metadata.name}", "metadata.creationTimestamp")
    except Malformed:
        return False
    return is_its_own and made >= record.decided


async def real_controller_of(cluster: Cluster, pod: Json) -> str:
    """uid of the controller of a pod; empty: it has none, or names one that does not exist. Raises `ClusterError`."""
    uid = hand_over_record.controller_of(pod)
    owners: list[Json] = pod["metadata"].get("ownerReferences") or []
    named = next((each for each in owners if each.get("uid") == uid), {})
    group, _, version = str(named.get("apiVersion", "")).rpartition("/")
    kind = str(named.get("kind", ""))
    plural = PLURALS.get((group, kind))
    if plural is None:
        return uid  # the controller may not read this kind
    try:
        resource = Resource(Object, group, version, plural, kind)
        found = await cluster.get(resource, str(named["name"]), pod["metadata"]["namespace"])
    except (NotFound, Invalid):
        return ""
    except Forbidden:
        return uid
    return uid if found["metadata"].get("uid") == uid else ""
