"""A cluster whose lists and watches are written down by the test. Only what a reflector uses."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from carrel.ids import PodUid
from carrel.kubernetes.cluster import EVERYTHING, ChangeType, ListPage, Selection, WatchEvent
from carrel.kubernetes.objects.kinds import Pod, PodMetadata


def pod(name: str, version: int, uid: str = "") -> Pod:
    return Pod(
        metadata=PodMetadata(
            name=name, namespace="lab", uid=PodUid(uid or f"uid-{name}"), resource_version=str(version)
        )
    )


def added(name: str, version: int, uid: str = "") -> WatchEvent[Any]:
    return WatchEvent(ChangeType.ADDED, pod(name, version, uid), str(version))


def modified(name: str, version: int, uid: str = "") -> WatchEvent[Any]:
    return WatchEvent(ChangeType.MODIFIED, pod(name, version, uid), str(version))


def deleted(name: str, version: int, uid: str = "") -> WatchEvent[Any]:
    return WatchEvent(ChangeType.DELETED, pod(name, version, uid), str(version))


def bookmark(version: int) -> WatchEvent[Any]:
    return WatchEvent(ChangeType.BOOKMARK, None, str(version))


def page(version: int, *items: Pod, token: str = "") -> ListPage[Any]:
    return ListPage(items, str(version), token)


SILENCE = object()
"""In a watch: the stream sends nothing more and stays open."""


class ScriptedCluster:
    """Lists and watches are given in order; the last list is repeated, and after the last watch all is silent."""

    def __init__(self, lists: Sequence[ListPage[Any] | Exception], watches: Sequence[Sequence[object]] = ()) -> None:
        self._lists = list(lists)
        self._watches = list(watches)
        self.tokens: list[str] = []
        self.watched_from: list[str] = []
        self.open_watches = 0

    async def list(
        self,
        resource: object,
        selection: Selection = EVERYTHING,
        *,
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
    ) -> ListPage[Any]:
        self.tokens.append(continue_token)
        answer = self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @asynccontextmanager
    async def watch(
        self, resource: object, selection: Selection = EVERYTHING, *, resource_version: str
    ) -> AsyncIterator[AsyncIterator[WatchEvent[Any]]]:
        self.watched_from.append(resource_version)
        script = self._watches.pop(0) if self._watches else [SILENCE]
        self.open_watches += 1
        try:
            if script and isinstance(script[0], Exception):
                raise script[0]
            yield self._events(script)
        finally:
            self.open_watches -= 1

    async def _events(self, script: Sequence[object]) -> AsyncIterator[WatchEvent[Any]]:
        for word in script:
            if word is SILENCE:
                await asyncio.Event().wait()
            elif isinstance(word, Exception):
                raise word
            else:
                assert isinstance(word, WatchEvent)
                yield word
