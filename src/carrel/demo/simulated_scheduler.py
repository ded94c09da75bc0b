"""Simulates kube-scheduler: calls the extender over HTTP as it does.

One pod at a time: filter with the names of the nodes on which it may run, prioritize with those that are left, then
bind to the best. Binds run in the background, as kube-scheduler's do, because the pods of a gang wait for each other.
It knows nothing else of what kube-scheduler does (volumes, resources).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

Json = dict[str, Any]
WhenBound = Callable[[str, str], None]
"""Called with the node and the error of the bind; no error: the pod is bound."""


@dataclass(frozen=True, slots=True)
class SchedulingAttempt:
    """One pod is either being bound to a node, or it waits, and `why` is what the extender said."""

    node: str = ""
    why: str = ""


class SimulatedScheduler:
    def __init__(self, session: aiohttp.ClientSession, binds: asyncio.TaskGroup, url: str) -> None:
        self._session = session
        self._binds = binds
        self._url = url
        self._binding: set[str] = set()

    def is_binding(self, uid: str) -> bool:
        return uid in self._binding

    async def attempt(self, pod: Json, nodes: Sequence[str], when_bound: WhenBound) -> SchedulingAttempt:
        found = await self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        if found["Error"]:
            return SchedulingAttempt(why=found["Error"])
        if not found["NodeNames"]:
            return SchedulingAttempt(why=_counted(found["FailedNodes"], len(nodes)))
        scores = await self._post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": found["NodeNames"]})
        node = max(scores, key=lambda score: score["Score"])["Host"]
        self._binding.add(pod["metadata"]["uid"])
        self._binds.create_task(self._bind(pod["metadata"], node, when_bound))
        return SchedulingAttempt(node=node)

    async def _bind(self, metadata: Json, node: str, when_bound: WhenBound) -> None:
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        try:
            when_bound(node, (await self._post("bind", {**names, "Node": node}))["Error"])
        except aiohttp.ClientError as error:
            when_bound(node, f"the extender does not answer: {error}")
        finally:
            self._binding.discard(metadata["uid"])

    async def _post(self, verb: str, body: Json) -> Any:
        async with self._session.post(f"{self._url}/carrel/{verb}", json=body) as answer:
            return await answer.json()


def _counted(refused: dict[str, str], nodes: int) -> str:
    """Return the sentence that kube-scheduler would write in the pod's Event."""
    reasons: dict[str, int] = {}
    for why in refused.values():
        reasons[why] = reasons.get(why, 0) + 1
    return f"0/{nodes} nodes are available: " + ", ".join(f"{count} {why}" for why, count in reasons.items())
