"""Keeps a store equal to what the API server has: list, then watch, for ever.

Promises
- Handlers hear every change as (old, new), synchronously and in order, after the store has it. An object that went
  while nobody watched is found missing by the next list: no deletion is lost.
- Nothing goes back in time: an event or a list that is older than what the store has (doubled, reordered, from a
  replica that lags) changes nothing. Versions are compared as numbers, which Kubernetes promises since 1.35 and has
  always kept.
- Whatever goes wrong is tried again, later and later: errors, versions that expired (as 410, or as an ERROR event in
  the stream), streams that fall silent. Every so often everything is listed anew, so that even an event that the
  server never sent is caught up with.

A handler that raises ends `run`: a ledger that missed a change must not answer another question.

A kind that belongs to somebody else may not be there, or not be ours to read (`if_there`): then there are no objects of
it, nobody waits for them, and now and then it is looked for again.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from carrel.kubernetes.backoff import REAL_PACE, Backoff, Timing
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
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource
from carrel.kubernetes.store import Key, Store, key_of

V = TypeVar("V", bound=Object)
Handler = Callable[[V | None, V | None], None]
"""Called with (None, new), (old, new) or (old, None)."""

log = logging.getLogger(__name__)

_REMEMBERED_DELETIONS = 10_000


@dataclass(frozen=True, slots=True)
class WatchTiming:
    page: int = 500
    """Objects per list call: what kubectl asks for; bigger pages only cost the server memory."""
    silence_s: float = 180.0
    """A watch without a word for so long may hang on a dead connection: it is opened again where it was."""
    resync_s: float = 1800.0
    """How often everything is listed anew, should an event have been lost on the way."""
    absent_s: float = 60.0
    """How often a kind that need not be there is looked for."""
    backoff: Backoff = field(default_factory=Backoff)


DEFAULT_WATCH_TIMING = WatchTiming()


class _Unusable(Exception):
    """An answer without an error that is no use: a list from a replica that is behind, a watch that ends at once."""


class Reflector(Generic[V]):
    def __init__(
        self,
        cluster: Cluster,
        resource: Resource[V],
        store: Store[V],
        selection: Selection = EVERYTHING,
        *,
        if_there: bool = False,
        watch_timing: WatchTiming = DEFAULT_WATCH_TIMING,
        pace: Timing = REAL_PACE,
    ) -> None:
        self._cluster = cluster
        self._if_there = if_there
        self.resource = resource
        self._selection = selection
        self._rhythm = watch_timing
        self._pace = pace
        self._handlers: list[Handler[V]] = []
        self._synced = asyncio.Event()
        self._version = 0
        self._heard_at = pace.now()
        self._listed_at = pace.now()
        self._failures = 0
        # The version at which each of the latest deletions happened, by uid: what comes later about them is old.
        self._deleted: OrderedDict[str, int] = OrderedDict()
        self.store = store

    def on_change(self, handler: Handler[V]) -> None:
        """Also told about what the store has already, as additions."""
        for item in self.store:
            handler(None, item)
        self._handlers.append(handler)

    async def wait_synced(self) -> None:
        """Until the first list is in the store."""
        await self._synced.wait()

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def silent_s(self) -> float:
        """How long ago the server last said anything: the most that the store can be behind."""
        return self._pace.now() - self._heard_at

    @property
    def failures(self) -> int:
        """Since a watch last worked; 0 while all is well."""
        return self._failures

    async def run(self) -> None:
        """Runs until it is cancelled."""
        is_listed = False
        while True:
            try:
                if not is_listed or self._pace.now() - self._listed_at >= self._rhythm.resync_s:
                    is_listed = await self._list()
                if is_listed:
                    await self._watch()
                else:
                    await self._pace.sleep(self._rhythm.absent_s)
            except Expired as expired:
                is_listed = False
                await self._wait_after(expired)
            except (ClusterError, _Unusable) as error:
                is_listed = is_listed and not isinstance(error, NotFound)  # the kind itself is gone
                await self._wait_after(error)

    async def read_once(self) -> None:
        """Fills the store as it is now, without watching it. Raises `ClusterError` where `run` would try again."""
        await self._list()

    async def _wait_after(self, error: ClusterError | _Unusable) -> None:
        self._failures += 1
        wait_s = self._pace.spread(self._rhythm.backoff.after(self._failures))
        asked = error.retry_after_s if isinstance(error, ClusterError) else None
        level = logging.INFO if isinstance(error, Expired) else logging.WARNING
        log.log(level, "watch_retried resource=%s failures=%d: %s", self.resource.plural, self._failures, error)
        await self._pace.sleep(max(wait_s, asked or 0.0))

    # Listing

    async def _list(self) -> bool:
        """Whether the kind is there."""
        try:
            await self._list_all()
        except (NotFound, Forbidden):
            if not self._if_there:
                raise
            for known in self.store:
                self._remove(key_of(known), self._version)
            self._heard_at = self._pace.now()
            self._synced.set()
            return False
        return True

    async def _list_all(self) -> None:
        items: dict[Key, V] = {}
        token = ""
        while True:
            # No resource version: the newest, not what some replica's cache happens to have.
            page = await self._cluster.list(
                self.resource, self._selection, limit=self._rhythm.page, continue_token=token
            )
            items.update((key_of(item), item) for item in page.items)
            token = page.continue_token
            if not token:
                break
        version = _number(page.resource_version)
        if version < self._version:
            raise _Unusable(f"a list at version {version} after version {self._version} was seen")
        for known in self.store:
            if key_of(known) not in items:
                self._remove(key_of(known), version)
        for item in items.values():
            self._accept(item)
        self._moved_on(version)
        self._listed_at = self._heard_at
        self._synced.set()

    # Watching

    async def _watch(self) -> None:
        async with self._cluster.watch(self.resource, self._selection, resource_version=str(self._version)) as events:
            reading = asyncio.ensure_future(self._read(events))
            watching = asyncio.ensure_future(self._wait_silent())
            try:
                await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                reading.cancel()
                watching.cancel()
                # Not `await task`: that could not be told from being cancelled ourselves, which must not be swallowed.
                await asyncio.wait({reading, watching})
            for task in (reading, watching):
                if not task.cancelled():
                    task.result()

    async def _read(self, events: AsyncIterator[WatchEvent[V]]) -> None:
        is_silent = True
        async for event in events:
            is_silent = False
            version = _number(event.resource_version)
            if event.change is ChangeType.DELETED and event.item is not None:
                self._delete(event.item, version)
            elif event.item is not None:
                self._accept(event.item)
            self._moved_on(version)
            self._failures = 0
        if is_silent:
            # Asked again at once, a server that is going down would be asked a thousand times a second.
            raise _Unusable("the watch ended without a word")

    async def _wait_silent(self) -> None:
        """Ends when nothing was heard for too long, or when everything is due to be listed anew."""
        self._heard_at = self._pace.now()
        listed_until = self._listed_at + self._rhythm.resync_s
        while (left := min(self._heard_at + self._rhythm.silence_s, listed_until) - self._pace.now()) > 0:
            await self._pace.sleep(left)
        self._failures = 0

    # The store, never back in time

    def _moved_on(self, version: int) -> None:
        self._version = max(self._version, version)
        self._heard_at = self._pace.now()

    def _accept(self, item: V) -> None:
        metadata = item.metadata
        version = _number(metadata.resource_version)
        known = self.store.get(metadata.name, metadata.namespace)
        if known is not None and version <= _number(known.metadata.resource_version):
            return
        if version <= self._deleted.get(metadata.uid, -1):
            return
        if known is not None and known.metadata.uid != metadata.uid:
            # Another object under the same name: its predecessor is gone, and somebody may hold a card for it.
            self._remove(key_of(item), version)
        self._tell(self.store.put(item), item)

    def _delete(self, item: V, version: int) -> None:
        known = self.store.get(item.metadata.name, item.metadata.namespace)
        if known is not None and version >= _number(known.metadata.resource_version):
            self._remove(key_of(item), version)
        self._remember_deleted(item.metadata.uid, version)

    def _remove(self, key: Key, version: int) -> None:
        old = self.store.drop(key)
        if old is not None:
            self._remember_deleted(old.metadata.uid, version)
            self._tell(old, None)

    def _remember_deleted(self, uid: str, version: int) -> None:
        self._deleted[uid] = max(version, self._deleted.get(uid, 0))
        if len(self._deleted) > _REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)

    def _tell(self, old: V | None, new: V | None) -> None:
        for handler in self._handlers:
            handler(old, new)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
