"""The kinds that a component watches, each in its own store, kept up to date together."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from carrel.kubernetes.cluster import EVERYTHING, Cluster, Selection
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, Reflector, WatchTiming
from carrel.kubernetes.store import IndexFunction, Store
from carrel.kubernetes.timing import REAL_TIME, Timing

V = TypeVar("V", bound=Object)


class Informers:
    def __init__(
        self,
        cluster: Cluster,
        watch_timing: WatchTiming = DEFAULT_WATCH_TIMING,
        timing: Timing = REAL_TIME,
        isolation: Isolation | None = None,
    ) -> None:
        self._cluster = cluster
        self._watch_timing = watch_timing
        self._timing = timing
        self._isolation = isolation or Isolation(timing.now)
        self.reflectors: list[Reflector[Any]] = []
        self._is_synced = False

    def watch(
        self,
        resource: Resource[V],
        selection: Selection = EVERYTHING,
        indexes: Mapping[str, IndexFunction[V]] | None = None,
        *,
        optional: bool = False,
        after: Sequence[Reflector[Any]] = (),
    ) -> Reflector[V]:
        """To be called before `run`. `optional`: the kind belongs to another product and may be missing. `after`: its
        objects come when all of these are there, so that each is understood once."""
        reflector = Reflector(
            self._cluster,
            resource,
            Store(indexes, self._isolation),
            selection,
            optional=optional,
            watch_timing=self._watch_timing,
            timing=self._timing,
            isolation=self._isolation,
            after=after,
        )
        self.reflectors.append(reflector)
        return reflector

    async def run(self) -> None:
        """Runs until it is cancelled; if one reflector fails, all end."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run())

    async def read_once(self) -> None:
        """Lists everything once, for commands that read and end. Raises `ClusterError`."""
        for reflector in self.reflectors:
            await reflector.read_once()

    async def wait_synced(self) -> None:
        for reflector in self.reflectors:
            await reflector.wait_synced()

    async def wait_first_copies(self) -> None:
        """The same, for a process whose answers must not wait for the garbage collector: it never visits the objects
        that exist then. Most of them stay for hours; those that go are freed without it."""
        gc.collect()  # before the copies come: with them it would take half a second
        await self.wait_synced()
        gc.freeze()

    @property
    def is_synced(self) -> bool:
        # What is synced stays synced; it is asked several times for each pod.
        self._is_synced = self._is_synced or all(reflector.is_synced for reflector in self.reflectors)
        return self._is_synced

    def silences(self) -> dict[str, float]:
        """By plural of the kind: seconds since the server last sent something about it."""
        return {reflector.resource.plural: reflector.silent_s for reflector in self.reflectors}
