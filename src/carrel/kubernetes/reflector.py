"""Keeps stores equal to what the API server has: lists, then watches, until it is cancelled.

A `Reflector` does it for one kind; `Informers` are all kinds that a component watches.

Promises
- Handlers are called with every change as (old, new), synchronously and in order, after the store has it. An object
  that was deleted while no watch was open is missing in the next list: no deletion is lost.
- The store never returns to an older state: an event or a list that is older than what the store has (sent twice,
  reordered, from a replica that lags) changes nothing. Versions are compared as numbers, which Kubernetes promises
  since 1.35 and has always kept.
- Whatever fails is tried again, with growing delays: errors, versions that expired (as 410, or as an ERROR event in
  the stream), streams that send nothing any more. From time to time everything is listed again, in case the server
  never sent an event.

A handler that raises about one object is logged and counted, and everything else goes on (`isolation`). So a handler
that keeps a record sets aside by itself what it could not read; it cannot count on being called again.

A kind of another product may be missing, or we may have no right to read it (`optional`): then it counts as synced
without objects, and is tried again from time to time.
"""

import asyncio
import gc
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from carrel.kubernetes.cluster import (
    EVERYTHING,
    ChangeType,
    Cluster,
    ClusterError,
    Expired,
    Forbidden,
    NotFound,
    Selection,
    WatchEvent,
)
from carrel.kubernetes.isolation import Isolation, title
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource
from carrel.kubernetes.store import IndexFunction, Key, Store, key_of
from carrel.kubernetes.timing import REAL_TIME, Backoff, Timing

V = TypeVar("V", bound=Object)
Handler = Callable[[V | None, V | None], None]
"""Called with (None, new), (old, new) or (old, None)."""

log = logging.getLogger(__name__)

_REMEMBERED_DELETIONS = 10_000
_AT_ONCE = 500
"""Objects of the first list that are handled without a pause: some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class WatchTiming:
    page: int = 500
    """Objects per list call: as kubectl; larger pages only cost the server memory."""
    silence_s: float = 180.0
    """A watch that sends nothing for so long may have a dead connection: it is opened again at the same version."""
    resync_s: float = 1800.0
    """How often everything is listed again, in case an event was lost."""
    absent_s: float = 60.0
    """How often an optional kind that is missing is tried again."""
    backoff: Backoff = field(default_factory=Backoff)


DEFAULT_WATCH_TIMING = WatchTiming()


class _Unusable(Exception):
    """An answer without an error that cannot be used: a list from a replica that lags, a watch that ends at once."""


class Reflector(Generic[V]):
    def __init__(
        self,
        cluster: Cluster,
        resource: Resource[V],
        store: Store[V],
        selection: Selection = EVERYTHING,
        *,
        optional: bool = False,
        watch_timing: WatchTiming = DEFAULT_WATCH_TIMING,
        timing: Timing = REAL_TIME,
        isolation: Isolation | None = None,
        after: Sequence["Reflector[Any]"] = (),
    ) -> None:
        """`after`: see `Informers.watch`."""
        self._cluster = cluster
        self._after = after
        self._isolation = isolation or Isolation(timing.now)
        self._optional = optional
        self.resource = resource
        self._selection = selection
        self._watch_timing = watch_timing
        self._timing = timing
        self._handlers: list[Handler[V]] = []
        self._fetched = asyncio.Event()
        self._synced = asyncio.Event()
        self._when_synced: list[Callable[[], None]] = []
        self._version = 0
        self._heard_at = timing.now()
        self._listed_at = timing.now()
        self._failures = 0
        self._is_read = False
        self._why_cut_off = ""
        # The version of each of the latest deletions, by uid: later events with a lower version are outdated.
        self._deleted: OrderedDict[str, int] = OrderedDict()
        self.store = store

    def on_change(self, handler: Handler[V]) -> None:
        """The handler is also called for what the store has already, as additions."""
        for item in self.store:
            self._tell([handler], None, item)
        self._handlers.append(handler)

    def tell_again(self) -> None:
        """Calls all handlers for what the store has, as additions: what they make of it depends on something else."""
        for item in self.store:
            self._tell(self._handlers, None, item)

    def on_synced(self, handler: Callable[[], None]) -> None:
        """The handler is called once, as soon as the first list is in the store."""
        self._when_synced.append(handler)

    def _set_synced(self) -> None:
        self._fetched.set()
        self._synced.set()
        handlers, self._when_synced = self._when_synced, []
        for handler in handlers:
            handler()

    async def wait_synced(self) -> None:
        """Until the first list is in the store."""
        await self._synced.wait()

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def silent_s(self) -> float:
        """Seconds since the server last sent anything: the store cannot be older than that."""
        return self._timing.now() - self._heard_at

    @property
    def failures(self) -> int:
        """Failures since a watch last worked; 0 if it works."""
        return self._failures

    @property
    def why_cut_off(self) -> str:
        """Why the server is not heard now; empty while a watch is open."""
        return self._why_cut_off

    async def run(self) -> None:
        """Runs until it is cancelled. What was just read once is not listed again."""
        is_listed, self._is_read = self._is_read, False
        while True:
            try:
                if not is_listed or self._timing.now() - self._listed_at >= self._watch_timing.resync_s:
                    is_listed = await self._list()
                if is_listed:
                    await self._watch()
                else:
                    await self._timing.sleep(self._watch_timing.absent_s)
            except Expired as expired:
                is_listed = False
                await self._wait_after(expired)
            except (ClusterError, _Unusable) as error:
                is_listed = is_listed and not isinstance(error, NotFound)  # the kind itself was deleted
                await self._wait_after(error)

    async def read_once(self) -> None:
        """Fills the store as it is now, without watching it. Raises `ClusterError` where `run` would try again. Waits
        for no other kind: who calls it decides on the order."""
        self._after = ()
        self._is_read = await self._list()

    async def _wait_after(self, error: ClusterError | _Unusable) -> None:
        self._failures += 1
        self._why_cut_off = str(error)
        wait_s = self._timing.spread(self._watch_timing.backoff.after(self._failures))
        asked = error.retry_after_s if isinstance(error, ClusterError) else None
        level = logging.INFO if isinstance(error, Expired) else logging.WARNING
        log.log(level, "watch_retried resource=%s failures=%d: %s", self.resource.plural, self._failures, error)
        await self._timing.sleep(max(wait_s, asked or 0.0))

    # Listing

    async def _list(self) -> bool:
        """Whether the kind exists."""
        try:
            await self._list_all()
        except (NotFound, Forbidden):
            if not self._optional:
                raise
            for known in self.store:
                self._remove(key_of(known), self._version)
            self._heard_at, self._why_cut_off = self._timing.now(), ""
            self._set_synced()
            return False
        return True

    async def _list_all(self) -> None:
        items: dict[Key, V] = {}
        token = ""
        for other in self._after:
            await other._fetched.wait()  # so that the server writes this list while that one is taken over
        while True:
            # No resource version: the newest state, not what the cache of a replica has.
            page = await self._cluster.list(
                self.resource, self._selection, limit=self._watch_timing.page, continue_token=token
            )
            items.update((key_of(item), item) for item in page.items)
            token = page.continue_token
            if not token:
                break
        version = version_number(page.resource_version)
        if version < self._version:
            raise _Unusable(f"a list at version {version} after version {self._version} was seen")
        self._fetched.set()
        for other in self._after:
            await other.wait_synced()
        await self._take_over(items, version)
        self._version = max(self._version, version)
        self._listed_at = self._heard_at = self._timing.now()
        self._set_synced()

    async def _take_over(self, items: Mapping[Key, V], version: int) -> None:
        """Makes the store equal to a list. The first one comes with pauses, so that probes are answered meanwhile:
        until it is all here, nobody asks. Later ones are mostly in the store already, and come as one change."""
        for known in self.store:
            if key_of(known) not in items:
                self._remove(key_of(known), version)
        left = iter(items.values())
        for item in left if self.is_synced else islice(left, _AT_ONCE):
            self._accept(item)
        while some := list(islice(left, _AT_ONCE)):
            await asyncio.sleep(0)
            for item in some:
                self._accept(item)

    # Watching

    async def _watch(self) -> None:
        async with self._cluster.watch(self.resource, self._selection, resource_version=str(self._version)) as events:
            self._why_cut_off = ""
            reading = asyncio.ensure_future(self._read(events))
            watching = asyncio.ensure_future(self._wait_silent())
            try:
                await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                reading.cancel()
                watching.cancel()
                # Not `await task`: that could not be distinguished from our own cancellation, which must be raised.
                await asyncio.wait({reading, watching})
            for task in (reading, watching):
                if not task.cancelled():
                    task.result()

    async def _read(self, events: AsyncIterator[WatchEvent[V]]) -> None:
        is_silent = True
        async for event in events:
            is_silent = False
            version = version_number(event.resource_version)
            if event.change is ChangeType.DELETED and event.item is not None:
                self._delete(event.item, version)
            elif event.item is not None:
                self._accept(event.item)
            self._version = max(self._version, version)
            self._heard_at = self._timing.now()
            self._failures = 0
        if is_silent:
            # Without a delay, a server that is shutting down would get a thousand calls a second.
            raise _Unusable("the watch ended without an event")

    async def _wait_silent(self) -> None:
        """Ends when the server has sent nothing for too long, or when it is time to list everything again."""
        self._heard_at = self._timing.now()
        listed_until = self._listed_at + self._watch_timing.resync_s
        while (left := min(self._heard_at + self._watch_timing.silence_s, listed_until) - self._timing.now()) > 0:
            await self._timing.sleep(left)
        self._failures = 0

    # The store, which never returns to an older state

    def _accept(self, item: V) -> None:
        metadata = item.metadata
        version = version_number(metadata.resource_version)
        known = self.store.get(metadata.name, metadata.namespace)
        if known is not None and version <= version_number(known.metadata.resource_version):
            return
        if version <= self._deleted.get(metadata.uid, -1):
            return
        if known is not None and known.metadata.uid != metadata.uid:
            # Another object of the same name: its predecessor is deleted, and may still hold a GPU in the ledger.
            self._remove(key_of(item), version)
        self._tell(self._handlers, self.store.put(item), item)

    def _delete(self, item: V, version: int) -> None:
        known = self.store.get(item.metadata.name, item.metadata.namespace)
        if known is not None and version >= version_number(known.metadata.resource_version):
            self._remove(key_of(item), version)
        self._remember_deleted(item.metadata.uid, version)

    def _remove(self, key: Key, version: int) -> None:
        old = self.store.drop(key)
        if old is not None:
            self._remember_deleted(old.metadata.uid, version)
            self._tell(self._handlers, old, None)

    def has_deleted(self, uid: str) -> bool:
        """Whether the server has said that an object is deleted, one of the latest."""
        return uid in self._deleted

    def _remember_deleted(self, uid: str, version: int) -> None:
        self._deleted[uid] = max(version, self._deleted.get(uid, 0))
        if len(self._deleted) > _REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)

    def _tell(self, handlers: Iterable[Handler[V]], old: V | None, new: V | None) -> None:
        for handler in handlers:
            try:
                handler(old, new)
            except Exception as error:
                self._isolation.failed("watch", f"{self.resource.kind} {title(new or old)}", error)


def version_number(version: str) -> int:
    """Resource versions increase: Kubernetes promises it since 1.35, and it was always so."""
    return int(version) if version.isdecimal() else 0


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

    async def run_and_act(self, act: Callable[[], Awaitable[float | None]]) -> None:
        """Runs until it is cancelled, and acts: at first, after every change, and when so many seconds have passed as
        the last act has returned; None: not before the next change."""
        changed = asyncio.Event()
        for reflector in self.reflectors:
            reflector.on_change(lambda old, new: changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run())
            while True:
                changed.clear()
                wait_s = await act()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await changed.wait()
