"""The elected controller decides which configuration is in force, and records it for all components.

What is given and what people have changed is read together. If all of it is good and safe, it is recorded, and a moment
later in force everywhere. If not, nothing of it is: the record says why, an Event and a metric too.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from carrel.cluster.configuration_record import (
    APPLIED,
    CHANGES,
    GIVEN,
    TEXT,
    Applied,
    Record,
    RefusedChange,
    body_of,
    ensure_changes,
    find,
    in_force,
    record_of,
)
from carrel.cluster.state import ClusterState
from carrel.configuration.current import changes
from carrel.configuration.fields import Change
from carrel.configuration.gpu_memory import Limits
from carrel.configuration.reading import Unusable, read
from carrel.configuration.schema import Configuration
from carrel.dialects.carrel import CHANGE_REASON, CHANGED_BY
from carrel.kubernetes.cluster import ClusterError, Selection
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import ConfigMap
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.kubernetes.reflector import Informers
from carrel.ledger.filtering import all_limit_memory
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.parsing.printable import printable
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
"""How often what was refused is looked at again: it may have become safe."""
ABLE_FOR = timedelta(minutes=1)
"""So long all nodes must be able to limit memory before it is required: agents report one after the other."""
BY_INSTALLATION = "the installation"
"""Who changed what was given."""
BY_CARREL = "Carrel"
"""Who decided what `auto` means."""
LONGEST_NOTE = 500
"""Characters of a name or a reason that are kept. Whoever may change rules writes them."""
UNREADABLE = "all of it: the record before cannot be read by this version of Carrel"


class Configuring:
    """Records good configurations while this process leads."""

    def __init__(self, state: ClusterState, metrics: ControllerMetrics) -> None:
        self._state = state
        self._metrics = metrics
        self._namespace = state.options.namespace
        self._events = EventRecorder(state.cluster, "carrel-controller", state.options.now)
        self._due = asyncio.Event()
        self._last: Record | None = None
        """What this process has recorded since it leads. None: what the record says is believed."""
        self._able_since: datetime | None = None
        """Since when all nodes can limit memory. None: not all can."""

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._last = self._able_since = None  # another process may have led since
        informers = Informers(self._state.cluster)
        for name in (GIVEN, CHANGES, APPLIED):
            watched = informers.watch(CONFIG_MAPS, Selection(self._namespace, fields=f"metadata.name={name}"))
            watched.on_change(lambda old, new: self._due.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informers.run())
            while True:
                self._due.clear()
                try:
                    await ensure_changes(self._state.cluster, self._namespace)
                    await self.round()
                except ClusterError as error:
                    log.warning("configuration_not_looked_at: %s", error)
                except Unusable as unusable:
                    self._metrics.set_configuration_refused(True)
                    log.error("configuration_refused: %s; there is no good one to go on with", unusable)
                try:
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await self._due.wait()
                except TimeoutError:
                    pass

    async def round(self) -> Record | None:
        """Look at what is there, and record it. Return the record; None: there is nothing to record.

        Raises `ClusterError`, or `Unusable` if there never was a good one; then it has to be done again.
        """
        cluster, namespace = self._state.cluster, self._namespace
        given, people = await find(cluster, GIVEN, namespace), await find(cluster, CHANGES, namespace)
        there = await find(cluster, APPLIED, namespace)
        recorded = record_of(there) if there is not None else None
        old = self._ours(recorded)
        if given is None and old is None:
            return None  # a process that was given its own file
        new = self._with_limits(self._decide(given, people, old))
        await self._tell(given if given is not None else there, new, old)
        if recorded is None or new.data() != recorded.data():
            self._last = None  # an answer may be lost: then nobody knows what the record says
            await self._write(new)
        self._last = new
        return new

    def _ours(self, recorded: Record | None) -> Record | None:
        """Return the record; in place of one that somebody else has written or deleted, the last of this process. Else
        an edited record could change what is not safe now."""
        last = self._last
        if last is None or (recorded is not None and recorded.data() == last.data()):
            return recorded
        log.error("configuration_record_%s: it is written again", "gone" if recorded is None else "not_ours")
        return replace(last, version=recorded.version if recorded is not None else "")

    def _decide(self, given: ConfigMap | None, people: ConfigMap | None, old: Record | None) -> Record:
        texts = (given.data.get(TEXT, "") if given else "", people.data.get(TEXT, "") if people else "")
        at = seconds(self._state.options.now())
        try:
            if given is None:
                raise Unusable(
                    [f"the ConfigMap {self._namespace}/{GIVEN} is gone: the last good configuration goes on"]
                )
            new = in_force(read(*texts), limits_required=old is not None and old.limits_required)
            if old is None:
                return Record(
                    *texts, history=[Applied(at=at, by=BY_INSTALLATION, reason="", changes=["the first one"])]
                )
            before = _readable(old)
            if before is None:
                return _anew(old, texts, [*old.history, _change(at, None, [UNREADABLE])])
            if unsafe := self._unsafe(before, new):
                raise Unusable(unsafe)
        except Unusable as unusable:
            if old is None:
                raise
            is_known = old.refused.mistakes == unusable.mistakes
            return replace(old, refused=old.refused if is_known else RefusedChange(at=at, mistakes=unusable.mistakes))
        if texts == (old.text, old.changes):
            return replace(old, refused=RefusedChange())
        changed = [str(each) for each in changes(before, new)]
        history = (
            [*old.history, _change(at, people if texts[1] != old.changes else None, changed)]
            if changed
            else old.history
        )
        return _anew(old, texts, history)

    def _with_limits(self, record: Record) -> Record:
        """`memory.limits: auto` becomes required when all nodes can limit memory, and stays so until an admin writes
        another word."""
        try:
            limits = read(record.text, record.changes).memory.limits
        except Unusable:
            return record  # what it means was decided by another version of Carrel
        if limits is not Limits.AUTO:
            return replace(record, limits_required=False)
        now = self._state.options.now()
        if record.limits_required or not all_limit_memory(self._state.ledger):
            self._able_since = None
            return record
        self._able_since = self._able_since or now
        if now - self._able_since < ABLE_FOR:
            return record
        change = Applied(
            at=seconds(now),
            by=BY_CARREL,
            reason="every node with GPUs can limit memory",
            changes=["memory.limits: auto → required"],
        )
        return replace(record, limits_required=True, history=[*record.history, change])

    def _unsafe(self, old: Configuration, new: Configuration) -> list[str]:
        """Who holds GPUs is not said: the words stay the same while pods come and go, so they are told once."""
        if not self._state.ledger.holders():
            return []
        how = "not while GPUs are held; it takes effect by itself when nobody holds one, or take it back"
        return [f"{each}: {how}" for each in changes(old, new) if each.change is Change.WHEN_FREE]

    async def _tell(self, about: ConfigMap | None, new: Record, old: Record | None) -> None:
        self._metrics.set_configuration_refused(bool(new.refused.mistakes))
        if about is None or (old is not None and new.refused == old.refused):
            return
        for mistake in new.refused.mistakes:
            log.error("configuration_refused: %s", mistake)
            await self._events.record(about, Note("ConfigurationRefused", mistake, WARNING), resource=CONFIG_MAPS)

    async def _write(self, record: Record) -> None:
        body = body_of(APPLIED, self._namespace, record.data(), record.version)
        if record.version:
            await self._state.cluster.update(CONFIG_MAPS, body)
        else:
            await self._state.cluster.create(CONFIG_MAPS, body, self._namespace)
        for change in record.history[-1:]:
            log.info("configuration_recorded by=%r reason=%r changes=%s", change.by, change.reason, change.changes)


def _anew(old: Record, texts: tuple[str, str], history: Sequence[Applied]) -> Record:
    return replace(old, text=texts[0], changes=texts[1], refused=RefusedChange(), history=history)


def _readable(record: Record) -> Configuration | None:
    """None: another version of Carrel wrote it, which knows other fields."""
    try:
        return record.configuration()
    except Unusable as unusable:
        log.error("configuration_of_another_version: it is replaced by what is given: %s", unusable)
        return None


def _change(at: str, people: ConfigMap | None, changed: list[str]) -> Applied:
    notes = people.metadata.annotations if people is not None else {}
    by = notes.get(CHANGED_BY, "somebody") if people is not None else BY_INSTALLATION
    by, reason = (printable(each)[:LONGEST_NOTE] for each in (by, notes.get(CHANGE_REASON, "")))
    return Applied(at=at, by=by, reason=reason, changes=changed)
