"""The kinds that a door watches, each in its own store, kept up together."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from carrel.kubernetes.backoff import REAL_PACE, Timing
from carrel.kubernetes.cluster import EVERYTHING, Cluster, Selection
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, Reflector, WatchTiming
from carrel.kubernetes.store import IndexFunction, Store

V = TypeVar("V", bound=Object)


class Informers:
    def __init__(
        self, cluster: Cluster, watch_timing: WatchTiming = DEFAULT_WATCH_TIMING, pace: Timing = REAL_PACE
    ) -> None:
        self._cluster = cluster
        self._rhythm = watch_timing
        self._pace = pace
        self._reflectors: list[Reflector[Any]] = []

    def watch(
        self,
        resource: Resource[V],
        selection: Selection = EVERYTHING,
        indexes: Mapping[str, IndexFunction[V]] | None = None,
        *,
        if_there: bool = False,
    ) -> Reflector[V]:
        """To be asked for before `run`. `if_there`: the kind belongs to somebody else and may be missing."""
        reflector = Reflector(
            self._cluster,
            resource,
            Store(indexes),
            selection,
            if_there=if_there,
            watch_timing=self._rhythm,
            pace=self._pace,
        )
        self._reflectors.append(reflector)
        return reflector

    async def run(self) -> None:
        """Runs until it is cancelled; one that breaks takes the others with it."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    async def read_once(self) -> None:
        """Everything as it is now, for who asks one question and leaves. Raises `ClusterError`."""
        for reflector in self._reflectors:
            await reflector.read_once()

    async def wait_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.wait_synced()

    @property
    def is_synced(self) -> bool:
        return all(reflector.is_synced for reflector in self._reflectors)

    def silences(self) -> dict[str, float]:
        """By plural of the kind, for how many seconds the server has said nothing about it."""
        return {reflector.resource.plural: reflector.silent_s for reflector in self._reflectors}
