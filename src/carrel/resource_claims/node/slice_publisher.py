"""Keeps the node's ResourceSlice in the cluster. Only the agent writes it, and it looks in every round: the kubelet
deletes the slices of its node when it starts, and when the plugin has been away for half a minute."""

import contextlib
from typing import Any

from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, NotFound
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.node.interfaces import MachineState
from carrel.resource_claims import dra
from carrel.resource_claims.node.device_slice import ServerAbility, ability_of, devices_of, same_devices, slice_of
from carrel.resource_claims.objects import RESOURCE_SLICES, ResourceSlice

Json = dict[str, Any]

ATTEMPTS = 4


class SlicePublisher:
    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._ability = ServerAbility()
        self._published: tuple[str, list[Json]] | None = None  # the version that was written, and its devices

    @property
    def divides_memory(self) -> bool:
        return self._ability.divides_memory

    async def publish(self, state: MachineState, node: NodeObject, seen: ResourceSlice | None) -> None:
        """`seen`: as the cache has it. Raises `ClusterError`."""
        for _ in range(ATTEMPTS):
            devices = devices_of(state.gpus, self._ability, state.details)
            if seen is not None and self._published == (seen.metadata.resource_version, devices):
                return
            try:
                stored = await self._written(devices, node.metadata.uid)
            except (AlreadyExists, Conflict, NotFound):
                seen = None  # the kubelet, or another agent that is still ending, has just changed it
                continue
            kept = stored["spec"].get("devices") or []
            ability = ability_of(devices, kept, self._ability)
            if ability == self._ability:
                self._published = stored["metadata"]["resourceVersion"], devices
                return
            self._ability = ability

    async def _written(self, devices: list[Json], node_uid: str) -> Json:
        try:
            there = await self._cluster.get(RESOURCE_SLICES, dra.slice_name(self._node))
        except NotFound:
            return await self._cluster.create(RESOURCE_SLICES, slice_of(self._node, node_uid, devices, 1))
        if same_devices(devices, there["spec"].get("devices") or []):
            return there
        body = slice_of(self._node, node_uid, devices, int(there["spec"]["pool"]["generation"]) + 1)
        body["metadata"] |= {"resourceVersion": there["metadata"]["resourceVersion"]}
        return await self._cluster.update(RESOURCE_SLICES, body)

    async def withdraw(self, seen: ResourceSlice | None) -> None:
        """Raises `ClusterError`."""
        self._published = None
        if seen is None:
            return
        with contextlib.suppress(NotFound):  # the kubelet was faster
            await self._cluster.delete(RESOURCE_SLICES, dra.slice_name(self._node))
