"""A watch: every change after a version, once and in order, as lines of JSON.

The watcher has no queue. It has a position in the collection's history and continues from there when it is woken; one
that falls behind the kept history gets 410 and has to list again. An object can change so that a selector matches it or
no longer matches it: the watcher sees that as ADDED or DELETED.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from kubernetes_in_memory import status
from kubernetes_in_memory.store import Change, Collection, HistoryExpired, ObjectStore, StoredObject, encode

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Watch:
    """What one watcher asked for."""

    matches: Callable[[StoredObject], bool]
    render: Callable[[StoredObject], bytes]
    """An object in the version and form that the watcher reads."""
    api_version: str
    kind: str
    after: int
    """Changes later than this version are shown."""
    initial: bool = False
    """Send all existing objects first, as ADDED."""
    marks_initial_end: bool = False
    bookmarks: bool = False
    timeout_s: float = 3600.0


def _line(change: bytes, body: bytes) -> bytes:
    return b'{"type":"' + change + b'","object":' + body + b"}\n"


class Watcher:
    def __init__(self, store: ObjectStore, collection: Collection, watch: Watch, bookmark_every_s: float) -> None:
        self._store = store
        self._collection = collection
        self._watch = watch
        self._bookmark_every_s = bookmark_every_s
        self._seen = watch.after

    async def lines(self, closing: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Until the time-out, the end of the server, or the end of the client."""
        woken = asyncio.Event()
        self._collection.listeners.add(woken)
        stopper = asyncio.ensure_future(self._wake_on(closing, woken))
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._watch.timeout_s
        bookmark_at = loop.time() + self._bookmark_every_s
        try:
            try:
                initial = self._initial()
            except status.ApiError as error:
                yield _line(b"ERROR", encode(error.status()))
                return
            if initial:
                yield initial
            while True:
                woken.clear()
                try:
                    chunk = self._new_lines()
                except HistoryExpired as gone:
                    yield _line(b"ERROR", encode(status.expired(str(gone)).status()))
                    return
                if chunk:
                    yield chunk
                now = loop.time()
                if closing.is_set():
                    return
                if now >= ends_at:
                    if self._watch.bookmarks:
                        yield self._bookmark()
                    return
                if now >= bookmark_at:
                    bookmark_at = now + self._bookmark_every_s
                    if self._watch.bookmarks:
                        yield self._bookmark()
                await self._wait_woken(woken, min(ends_at, bookmark_at) - now)
        finally:
            self._collection.listeners.discard(woken)
            stopper.cancel()

    @staticmethod
    async def _wake_on(closing: asyncio.Event, woken: asyncio.Event) -> None:
        await closing.wait()
        woken.set()

    @staticmethod
    async def _wait_woken(woken: asyncio.Event, at_most_s: float) -> None:
        try:
            async with asyncio.timeout(max(at_most_s, 0.0)):
                await woken.wait()
        except TimeoutError:
            pass

    def _initial(self) -> bytes:
        if not self._watch.initial:
            return b""
        if self._watch.after > self._store.version:
            # The requested version does not exist yet; the caller waits.
            raise status.too_large_version(self._watch.after, self._store.version)
        self._seen = self._store.version
        there = sorted(self._collection.items(), key=lambda stored: stored.key)
        chunk = b"".join(_line(b"ADDED", self._watch.render(item)) for item in there if self._watch.matches(item))
        return chunk + self._bookmark({INITIAL_EVENTS_END: "true"}) if self._watch.marks_initial_end else chunk

    def _new_lines(self) -> bytes:
        changes = self._collection.changes_after(self._seen)
        self._seen = max(self._seen, self._store.version)
        return b"".join(map(self._line_for, changes))

    def _line_for(self, change: Change) -> bytes:
        """The line that this watcher gets for a change, or nothing."""
        was = change.before is not None and self._watch.matches(change.before)
        is_now = change.after is not None and self._watch.matches(change.after)
        if is_now:
            return _line(b"MODIFIED" if was else b"ADDED", self._watch.render(change.last))
        if not was:
            return b""
        last = change.last
        if change.after is not None and change.before is not None:
            # The selector no longer matches: the watcher gets the last state that matched, at the new version.
            tree = change.before.tree
            tree = {**tree, "metadata": {**tree["metadata"], "resourceVersion": str(change.version)}}
            last = StoredObject(tree, encode(tree), change.version)
        return _line(b"DELETED", self._watch.render(last))

    def _bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(self._seen), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        tree = {"kind": self._watch.kind, "apiVersion": self._watch.api_version, "metadata": metadata}
        return _line(b"BOOKMARK", self._watch.render(StoredObject(tree, encode(tree), self._seen)))
