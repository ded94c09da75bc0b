"""Keeps the manifests of successors in Secrets (`dialects.successor_manifest`), and reads them again."""

import contextlib
import logging
from collections.abc import Callable

from carrel.dialects import successor_manifest
from carrel.dialects.dra import NOTHING_CLAIMED, ClaimedGpus
from carrel.dialects.hand_over_record import HandOver, successor_of
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Json, NotFound
from carrel.kubernetes.objects.resources import SECRETS
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed

ClaimedBy = Callable[[Json], ClaimedGpus]

log = logging.getLogger(__name__)


class SuccessorStore:
    def __init__(self, cluster: Cluster, namespace: str, claimed_by: ClaimedBy = lambda pod: NOTHING_CLAIMED) -> None:
        """`claimed_by`: what a pod asks for by ResourceClaims."""
        self._cluster = cluster
        self._namespace = namespace
        self._claimed_by = claimed_by

    async def keep(self, record: HandOver, written: Json, pod: Json) -> str | Refusal:
        """The name of the Secret with the successor of this version of the pod. `written`: the record's ConfigMap."""
        packed = successor_manifest.pack(successor_of(pod, record.why, record.lost_at, self._claimed_by(pod)))
        if len(packed) > successor_manifest.MOST_BYTES:
            sizes = f"{len(packed):,} bytes compressed, {successor_manifest.MOST_BYTES:,} are possible"
            return Refusal(f"its manifest is too large to be kept: {sizes}")
        name = successor_manifest.manifest_name(written, pod)
        # If there is one already, it is of the same version of the pod.
        with contextlib.suppress(AlreadyExists):
            secret = successor_manifest.write_manifest(name, packed, written)
            await self._cluster.create(SECRETS, secret, self._namespace)
        return name

    async def manifest(self, record: HandOver) -> Json | None:
        """None: the pod gets no successor."""
        if not record.manifest:
            return None
        try:
            return successor_manifest.read_manifest(await self._cluster.get(SECRETS, record.manifest, self._namespace))
        except (NotFound, Malformed) as error:
            # Somebody has deleted or changed it. What is lost stays lost; others must not wait for it.
            log.error("successor_lost pod=%s uid=%s: %s", record.pod, record.uid, error)
            return None
