"""Records Events about pods and other objects, as `kubectl describe` shows them.

An Event is named after what it says (`objects.events`). So the same note about the same pod is one Event, whoever
records it and however often, also after a restart or by another leader.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, Forbidden, MergePatch, NotFound, Selection
from carrel.kubernetes.objects import events
from carrel.kubernetes.objects.events import Note
from carrel.kubernetes.objects.kinds import EventObject, Object
from carrel.kubernetes.objects.resources import EVENTS, PODS, Resource

log = logging.getLogger(__name__)


class EventRecorder:
    def __init__(self, cluster: Cluster, component: str, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._component = component
        self._now = now

    async def record(
        self, about: Object, note: Note, *, count_again: bool = False, resource: Resource[Any] = PODS
    ) -> bool:
        """False if the object's namespace is being deleted: then no Event can be written, and nobody would read it.

        If the Event exists, nothing is written or, with `count_again`, it is counted once more. Raises `ClusterError`.
        """
        namespace = about.metadata.namespace or events.OF_CLUSTER_OBJECTS
        body = events.event_body(about, resource, note, self._component, self._now())
        try:
            await self._cluster.create(EVENTS, body, namespace)
        except AlreadyExists:
            if count_again:
                await self._count_again(body["metadata"]["name"], namespace)
        except Forbidden as error:
            if not error.is_namespace_terminating:
                raise
            return False
        return True

    async def try_record(self, about: Object, note: Note) -> None:
        """An Event that cannot be written must not delay what it is about: that is only logged."""
        try:
            await self.record(about, note)
        except ClusterError as error:
            where = f"{about.metadata.namespace}/{about.metadata.name}"
            log.info("event_not_written object=%s reason=%s: %s", where, note.reason, error)

    async def recorded(self, pod: Object) -> Sequence[EventObject]:
        """What this component has recorded about the pod, as far as Kubernetes has not deleted it yet."""
        ours = Selection(pod.metadata.namespace, fields=events.recorded_by(self._component, pod.metadata.uid))
        return (await self._cluster.list(EVENTS, ours)).items

    async def _count_again(self, name: str, namespace: str) -> None:
        try:
            event = await self._cluster.get(EVENTS, name, namespace)
            await self._cluster.patch(EVENTS, name, MergePatch(events.counted_again(event, self._now())), namespace)
        except NotFound:
            pass  # Kubernetes has just deleted it because of its age; it is recorded anew the next time
