"""What is left in the cluster where ResourceClaims are not counted any more: claims that showed to
schedulers what pods hold. It knows nothing else of ResourceClaims, whose code is not loaded there."""

import asyncio
import logging

from carrel.cluster.state import ClusterState
from carrel.dialects.carrel import SHADOW
from carrel.kubernetes.cluster import ClusterError, DeleteOptions, Forbidden, NotFound, Selection
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource

log = logging.getLogger(__name__)

RESOURCE_CLAIMS = Resource(Object, "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
SWEEP_S = 30.0
"""How long after a failure it is tried again."""


class LeftShadows:
    """Deletes them, once."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    async def run(self) -> None:
        """While this process leads, until nothing is left."""
        while True:
            try:
                if await self.is_done():
                    return
            except ClusterError as error:
                self._state.isolation.failed("shadow", "removal", error)
            await asyncio.sleep(SWEEP_S)

    async def is_done(self) -> bool:
        cluster, ours = self._state.cluster, Selection(self._state.options.namespace, labels=f"{SHADOW}=true")
        try:
            left = (await cluster.list(RESOURCE_CLAIMS, ours)).items
        except (NotFound, Forbidden):
            return True  # the kind is not served, or was never counted

        async def delete(claim: Object) -> None:
            how = DeleteOptions(uid=claim.metadata.uid)
            await cluster.delete(RESOURCE_CLAIMS, claim.metadata.name, claim.metadata.namespace, how=how)

        await self._state.isolation.each("shadow", left, delete)
        if left:
            log.info("shadows_deleted count=%d", len(left))
        return not left
