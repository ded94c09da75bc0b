"""The configuration in the cluster: three ConfigMaps in Carrel's own namespace.

    carrel           carrel.yaml                what the chart, or whoever installs Carrel, gives
    carrel-changes   carrel.yaml                what people have changed since: booking rules and tiers, laid over it
    carrel-applied   carrel.yaml changes.yaml   both as they were when they were last good: all components follow it
                     refused.json               why what is there now is not in force; empty: it is
                     history.json               the last changes, with when, by whom and why
                     memory-limits              `required`, once memory.limits: auto has become that

Only the elected controller writes `carrel-applied` (`lifecycle.configuring`). So all components act on the same rules,
and a mistake in the other two changes nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from carrel.configuration.current import CurrentConfiguration, FieldChange, changes
from carrel.configuration.fields import Change
from carrel.configuration.gpu_memory import Limits
from carrel.configuration.reading import Unusable, read
from carrel.configuration.schema import Configuration
from carrel.kubernetes.cluster import Cluster, NotFound, Selection
from carrel.kubernetes.objects.kinds import ConfigMap
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.kubernetes.reflector import Informers

log = logging.getLogger(__name__)

GIVEN, CHANGES, APPLIED = "carrel", "carrel-changes", "carrel-applied"
TEXT, CHANGES_TEXT, REFUSED, HISTORY = "carrel.yaml", "changes.yaml", "refused.json", "history.json"
MEMORY_LIMITS = "memory-limits"
LONGEST_HISTORY, LARGEST_HISTORY = 50, 128 * 1024
"""Changes, and their bytes. An object has at most a megabyte, and without room for the next change none could be
recorded any more."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A change that took effect."""

    at: str
    by: str
    reason: str
    changes: list[str]


class RefusedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Why what is there now is not in force."""

    at: str = ""
    mistakes: list[str] = []


NOTHING_REFUSED = RefusedChange()


@dataclass(frozen=True, slots=True)
class Record:
    """The ConfigMap `carrel-applied`."""

    text: str
    changes: str = ""
    refused: RefusedChange = NOTHING_REFUSED
    history: Sequence[Applied] = ()
    version: str = ""
    """Its resourceVersion; empty: it is not there yet."""
    limits_required: bool = False
    """Whether `memory.limits: auto` has become `required`."""

    def data(self) -> dict[str, str]:
        refused = msgspec.json.encode(self.refused).decode() if self.refused.mistakes else ""
        history = list(self.history[-LONGEST_HISTORY:])
        while len(encoded := msgspec.json.encode(history)) > LARGEST_HISTORY:
            del history[0]
        limits = {MEMORY_LIMITS: Limits.REQUIRED.value} if self.limits_required else {}
        return {TEXT: self.text, CHANGES_TEXT: self.changes, REFUSED: refused, HISTORY: encoded.decode(), **limits}

    def configuration(self) -> Configuration:
        """Raises `Unusable` if it was written by a version of Carrel that knows other fields."""
        return in_force(read(self.text, self.changes), limits_required=self.limits_required)


def in_force(of: Configuration, *, limits_required: bool) -> Configuration:
    """Return what `auto` means now in place of it: components know `required`, and nothing else that limits memory."""
    if not limits_required or of.memory.limits is not Limits.AUTO:
        return of
    return replace(of, memory=replace(of.memory, limits=Limits.REQUIRED))


def record_of(found: ConfigMap) -> Record:
    """A part that cannot be read is left out: only the two texts decide anything."""
    data = found.data
    return Record(
        data.get(TEXT, ""),
        data.get(CHANGES_TEXT, ""),
        _decoded(data.get(REFUSED, ""), RefusedChange, NOTHING_REFUSED),
        _decoded(data.get(HISTORY, ""), list[Applied], []),
        found.metadata.resource_version,
        data.get(MEMORY_LIMITS) == Limits.REQUIRED.value,
    )


def _decoded(text: str, kind: Any, otherwise: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind) if text else otherwise
    except (msgspec.ValidationError, msgspec.DecodeError):
        log.warning("configuration_record_unreadable part=%s", kind)
        return otherwise


def body_of(name: str, namespace: str, data: Mapping[str, str], version: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, **({"resourceVersion": version} if version else {})}
    return {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "metadata": metadata, "data": dict(data)}


async def find(cluster: Cluster, name: str, namespace: str) -> ConfigMap | None:
    """Raises `ClusterError`."""
    # By a list: whoever may watch one object may list it.
    there = await cluster.list(CONFIG_MAPS, Selection(namespace, fields=f"metadata.name={name}"))
    return next(iter(there.items), None)


class NoConfiguration(Exception):
    """There never was a good configuration. The message says what to do."""


async def first_configuration(cluster: Cluster, namespace: str) -> Configuration:
    """Return the configuration in force. Before the controller has ever led, that is what was given.

    Raises `ClusterError`, or `NoConfiguration`.
    """
    applied = await find(cluster, APPLIED, namespace)
    if applied is not None:
        try:
            return _loudly(record_of(applied))
        except Unusable as unusable:
            log.error("configuration_of_another_version: what is given is read instead: %s", unusable)
    try:
        given = await find(cluster, GIVEN, namespace)
        if given is None:
            raise NoConfiguration(f"there is no ConfigMap {namespace}/{GIVEN} with the key {TEXT}")
        people = await find(cluster, CHANGES, namespace)
        return read(given.data.get(TEXT, ""), people.data.get(TEXT, "") if people else "")
    except Unusable as unusable:
        raise NoConfiguration("\n  ".join(unusable.mistakes)) from None


def _loudly(record: Record) -> Configuration:
    for mistake in record.refused.mistakes:
        log.error("configuration_refused the last good one goes on: %s", mistake)
    return record.configuration()


@dataclass(frozen=True, slots=True)
class Reads:
    """What a process reads of the configuration."""

    sections: Sequence[str]
    """Such as `tiers`."""
    when_it_starts: Sequence[str] = ()
    """Sections and fields of which it takes over no change while it runs, besides the fields that say so themselves."""

    def takes_over(self, change: FieldChange) -> bool:
        """Whether the change takes effect while the process runs; else it has to start again."""
        late = tuple(f"{each}." for each in self.when_it_starts)
        return change.change is Change.AT_ONCE and not f"{change.path}.".startswith(late)


class ConfigurationWatch:
    """Keeps the configuration of a process as the record says it."""

    def __init__(self, cluster: Cluster, namespace: str, current: CurrentConfiguration, reads: "Reads") -> None:
        self._current = current
        self._reads = reads
        self._informers = Informers(cluster)
        self.why_restart = ""
        """Which change in the record this process can take over only by starting again."""
        self.on_restart: Callable[[], object] = lambda: None
        """Called when there is one. The record may be taken back a moment later."""
        watched = self._informers.watch(CONFIG_MAPS, Selection(namespace, fields=f"metadata.name={APPLIED}"))
        watched.on_change(self._on_change)

    async def run(self) -> None:
        await self._informers.run()

    def _on_change(self, _: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None:
            log.error("configuration_record_gone: the last good configuration goes on")
            return
        record = record_of(new)
        try:
            wanted = record.configuration()
        except Unusable as unusable:
            log.error("configuration_of_another_version: the last good one goes on: %s", unusable)
            return
        ours = [
            each for each in changes(self._current.value, wanted) if each.path.split(".")[0] in self._reads.sections
        ]
        self.why_restart = "; ".join(str(each) for each in ours if not self._reads.takes_over(each))
        if self.why_restart:
            self.on_restart()
            return
        for each in ours:
            log.info("configuration_changed %s", each)
        self._current.apply(wanted)


async def ensure_changes(cluster: Cluster, namespace: str) -> None:
    """Makes the object for what people change, if it is missing: the booking service may only update it."""
    try:
        await cluster.get(CONFIG_MAPS, CHANGES, namespace)
    except NotFound:
        await cluster.create(CONFIG_MAPS, body_of(CHANGES, namespace, {}), namespace)
