"""How many pods a gang has, where neither its pods nor their claim say it: as many as what made them says, else as many
as there are once no new one has come for some seconds.

What made the pods (`dialects.gang_makers`) is read when it is first needed and kept for a few seconds, never watched:
most clusters have many Jobs and ReplicaSets and few gangs without a size (`decisions/0028`). A question never waits for
it. Until it is known, the gang says why it cannot be planned; then its pods are woken.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.cluster.options import ClusterOptions
from carrel.cluster.pod_progress import holder_of, is_ending
from carrel.cluster.watches import Watches, may_name_gang
from carrel.dialects.gang_makers import (
    Maker,
    group_size_of,
    maker_of,
    makers_maker,
    part_of,
    pod_of_template,
    pods_made_by,
)
from carrel.dialects.kai import SUB_GROUP, PodGroup, why_incomplete
from carrel.dialects.registry import gang_name
from carrel.kubernetes.cluster import Cluster, ClusterError, Forbidden, NotFound
from carrel.kubernetes.isolation import Isolation, title
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang
from carrel.ledger.shares import Holder
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

FRESH_S = 5.0
"""How long what a maker says is believed: a Job's completions and the replicas of a ReplicaSet change."""
FORGET_S = 600.0
"""Makers about which nobody has asked for so long are forgotten."""
AT_LEAST = 2
"""How large a gang counts as, while its size is not known: it is one, so it has two pods or more."""


@dataclass(frozen=True, slots=True)
class _MakerSays:
    """What a maker said when it was last read."""

    at: float
    pods: int | Refusal | None
    """None: it does not exist, so its pods are counted."""
    by: Maker
    """Who said it: the maker, or what makes that."""


_NOBODY = _MakerSays(0.0, None, Maker(PODS, "", "", ""))
"""Of pods that nothing made that says how many there are."""


@dataclass(frozen=True, slots=True)
class _Answer:
    until: float
    """When it must be worked out again, even if no pod has changed."""
    gang: Gang | None


class GangSizes:
    def __init__(self, cluster: Cluster, watches: Watches, isolation: Isolation, options: ClusterOptions) -> None:
        self._cluster = cluster
        self._watches = watches
        self._isolation = isolation
        self._clock = options.clock
        self._reads_makers = options.reads_makers
        self._settle_s = options.dialect_options.gang_settle_s
        self._found: dict[Maker, _MakerSays] = {}
        self._asked_at: dict[Maker, float] = {}
        self._tasks: dict[Maker, asyncio.Task[None]] = {}
        self._arrived: dict[str, float] = {}  # uid → when the pod came
        self._answers: dict[str, _Answer] = {}
        self._unplanned: dict[str, tuple[Pod, str]] = {}  # gang that waits for its size → a pod of it, and its name
        self._when_changed: list[Callable[[], None]] = []
        self._when_known: list[Callable[[Sequence[Holder]], None]] = []

    def on_change(self, handler: Callable[[], None]) -> None:
        """The handler is called when a gang has another size than before."""
        self._when_changed.append(handler)

    def on_known(self, handler: Callable[[Sequence[Holder]], None]) -> None:
        """The handler is called with the pods of a gang that waited for its size, which is now known."""
        self._when_known.append(handler)

    def gang_of(self, pod: Pod, name: str) -> Gang | None:
        """The gang of this name to which the pod belongs, as KAI's PodGroup says, else as it is found out here; None: a
        gang of one pod is none. Raises `Malformed`."""
        group = self._watches.pod_groups.store.get(name, pod.metadata.namespace)
        says_size = group is not None and (group.spec.sub_groups or group.spec.min_member > 0)
        return self._of_group(pod, group) if group and says_size else self._of_pods(pod, name)

    def _of_pods(self, pod: Pod, name: str) -> Gang | None:
        namespace, part = pod.metadata.namespace, part_of(pod)
        full_name = f"{namespace}/{name}" + (f"@{part}" if part else "")
        if (size := group_size_of(pod)) is not None:
            return Gang(full_name, size) if size > 1 else None
        known = self._answers.get(full_name)
        if known is None or known.until <= self._clock():
            known = self._answers[full_name] = self._work_out(pod, name, full_name)
        if known.gang is not None and known.gang.unplanned:
            self._unplanned[full_name] = pod, name
        return known.gang

    def _of_group(self, pod: Pod, group: PodGroup) -> Gang | None:
        """The gang of a PodGroup that says how many pods it needs. Where sub groups say it, all pods that there are are
        placed together: fewer could be the wrong ones."""
        name, needed = group.metadata.name, group.spec.min_member
        full_name = f"{pod.metadata.namespace}/{name}"
        if not group.spec.sub_groups:
            return Gang(full_name, needed) if needed > 1 else None
        known = self._answers.get(full_name)
        if known is None:
            there = {each.metadata.uid: each for each in self._pods_naming(pod.metadata.namespace, name)}
            members = [each for each in {**there, pod.metadata.uid: pod}.values() if not is_ending(each)]
            why = why_incomplete(group, Counter(each.metadata.labels.get(SUB_GROUP, "") for each in members))
            size = max(AT_LEAST if why else 1, needed, len(members))
            known = self._answers[full_name] = _Answer(math.inf, Gang(full_name, size, why) if size > 1 else None)
        return known.gang

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if not any(pod is not None and may_name_gang(pod) for pod in (old, new)):
            return
        if new is None and old is not None:
            self._arrived.pop(old.metadata.uid, None)
        elif new is not None and old is None:
            self._arrived[new.metadata.uid] = self._clock()
        self._answers.clear()

    def on_names(self) -> None:
        """Pods may name other gangs than before."""
        self._answers.clear()

    def refresh(self) -> None:
        """To be called every few seconds: wakes the pods of gangs whose size is known by now; forgets old makers."""
        now = self._clock()
        for full_name, (pod, name) in tuple(self._unplanned.items()):
            del self._unplanned[full_name]
            self._isolation.ask("gang", (pod, name), self._wake_if_known, None, lambda each: title(each[0]))
        for maker, asked_at in tuple(self._asked_at.items()):
            if now - asked_at > FORGET_S:
                del self._asked_at[maker]
                self._found.pop(maker, None)

    def _wake_if_known(self, named: tuple[Pod, str]) -> None:
        pod, name = named
        gang, members = self._of_pods(pod, name), self._members_of(pod, name)
        if members and (gang is None or not gang.unplanned):
            waiting = [holder_of(each) for each in members if not each.spec.node_name]
            for handler in self._when_known:
                handler(waiting)

    async def wait_looked_up(self) -> None:
        """Until all makers that were asked about are read: for commands that read and end."""
        while tasks := tuple(self._tasks.values()):
            await asyncio.wait(tasks)

    # --- the size ----------------------------------------------------------------------------------------------------

    def _work_out(self, pod: Pod, name: str, full_name: str) -> _Answer:
        now, members = self._clock(), self._members_of(pod, name)
        until, smallest = now + FRESH_S, max(AT_LEAST, len(members))
        made: dict[Maker, int] = {}
        counted = 0
        for maker, pods in Counter(map(maker_of, members)).items():
            found = self._ask(maker, full_name) if maker is not None else _NOBODY
            if found is None:
                why = f"gang {full_name} waits until {maker} is read, which says how many pods it has"
                return _Answer(until, Gang(full_name, smallest, why))
            if isinstance(found.pods, Refusal):
                return _Answer(until, Gang(full_name, smallest, f"gang {full_name}: {found.pods.reason}"))
            if found.pods is None:
                counted += pods
            else:
                made[found.by] = found.pods
        size = counted + sum(made.values())
        settled_at = max((self._arrived.get(each.metadata.uid, now) for each in members), default=0.0)
        settled_at += self._settle_s
        if counted and settled_at > now:
            why = (
                f"gang {full_name} has {len(members)} pod{'s' * (len(members) != 1)} so far, and nothing says how many"
                f" it will have; it is placed when no more have come for {self._settle_s:g} s"
            )
            return _Answer(min(until, settled_at), Gang(full_name, max(AT_LEAST, size), why))
        return _Answer(until, Gang(full_name, size) if size > 1 else None)

    def _members_of(self, pod: Pod, name: str) -> list[Pod]:
        """Those that exist, and this one: it may be about to be created, or kube-scheduler may have seen it first."""
        there = [
            each
            for each in self._pods_naming(pod.metadata.namespace, name)
            if not is_ending(each) and part_of(each) == part_of(pod)
        ]
        is_there = pod.metadata.uid and any(each.metadata.uid == pod.metadata.uid for each in there)
        return there if is_there or is_ending(pod) else [*there, pod]

    def _pods_naming(self, namespace: str, gang: str) -> list[Pod]:
        found = (pod for pod in self._watches.pods_that_may_name(namespace, gang) if self._name_in(pod) == gang)
        return list({pod.metadata.uid: pod for pod in found}.values())

    def _name_in(self, pod: Pod) -> str:
        try:
            return gang_name(pod, self._watches.claim_named)
        except Malformed:
            return ""  # its own filter call returns the error

    # --- what made the pods ------------------------------------------------------------------------------------------

    def _ask(self, maker: Maker, gang: str) -> _MakerSays | None:
        """What is known of the maker; it is read again if that is old. None: it has not been read yet."""
        now, found = self._clock(), self._found.get(maker)
        self._asked_at[maker] = now
        is_old = found is None or now - found.at >= FRESH_S
        if is_old and self._reads_makers and maker not in self._tasks:
            self._begin(maker, gang)
        return found

    def _begin(self, maker: Maker, gang: str) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a command that has read everything
        task = self._tasks[maker] = loop.create_task(self._look_up(maker, gang))
        task.add_done_callback(lambda _: self._tasks.pop(maker, None))

    async def _look_up(self, maker: Maker, gang: str) -> None:
        before = self._found.get(maker)
        try:
            found = await self._read(maker, gang)
        except ClusterError as error:
            log.info("gang_maker_not_read maker=%s: %s", maker, error)
            return  # asked again with a later question
        except Exception as error:
            self._isolation.failed("gang", str(maker), error)
            return
        self._found[maker] = found
        if before is None or (before.pods, before.by) != (found.pods, found.by):
            self._answers.clear()
            for handler in self._when_changed:
                handler()
            self.refresh()

    async def _read(self, maker: Maker, gang: str) -> _MakerSays:
        try:
            made = await self._cluster.get(maker.resource, maker.name, maker.namespace)
            if maker.uid and (made.get("metadata") or {}).get("uid") != maker.uid:
                return self._said(None, maker)
            above = makers_maker(made)
            if above is not None:
                return await self._read(above, gang)
            return self._said(pods_made_by(made, lambda template: self._names(template, maker, gang)), maker)
        except NotFound:
            return self._said(None, maker)
        except Forbidden as error:
            why = f"{maker} says how many pods it has, and Carrel may not read it: {error.message}"
            return self._said(Refusal(why), maker)
        except Malformed as malformed:
            return self._said(Refusal(str(malformed)), maker)

    def _said(self, pods: int | Refusal | None, by: Maker) -> _MakerSays:
        return _MakerSays(self._clock(), pods, by)

    def _names(self, template: Mapping[str, Any], maker: Maker, gang: str) -> bool:
        name = gang_name(pod_of_template(template, maker.namespace), self._watches.claim_named)
        named = f"{maker.namespace}/{name}"
        return bool(name) and gang in (named, f"{named}@{gang.rpartition('@')[2]}")
