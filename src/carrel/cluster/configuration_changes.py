"""What people change of the configuration while the cluster runs, and where each value in force comes from.

Only the ConfigMap `carrel-changes` is written. Whoever writes it names the version that was read: of two people who
change it at once, the second is told what the first did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from carrel.cluster.configuration_record import (
    APPLIED,
    CHANGES,
    GIVEN,
    TEXT,
    Record,
    body_of,
    find,
    record_of,
)
from carrel.configuration.reading import (
    CHANGED,
    Unusable,
    as_text,
    content_of,
    every_field,
    leaves,
    plain,
    read,
    with_value,
)
from carrel.configuration.schema import Configuration
from carrel.dialects.carrel import CHANGE_REASON, CHANGED_BY
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.kinds import ConfigMap
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.parsing import Malformed
from carrel.parsing.time import instant, moment

DEFAULT, INSTALLATION, PEOPLE = "default", "installation", "people"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value in force comes from."""

    kind: str
    by: str = ""
    at: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if self.kind != PEOPLE:
            return self.kind
        return f"changed by {self.by} on {self.at}" if self.by else "changed by somebody"


@dataclass(frozen=True, slots=True)
class ChangeNote:
    """Who changes something, and why."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Objects:
    """The three ConfigMaps, as they were read."""

    given: ConfigMap | None
    people: ConfigMap | None
    record: Record | None
    """None: no controller has ever led."""

    @property
    def given_text(self) -> str:
        """What the next decision of the controller starts from."""
        if self.given is not None:
            return self.given.data.get(TEXT, "")
        return self.record.text if self.record is not None else ""

    @property
    def changes_text(self) -> str:
        return self.people.data.get(TEXT, "") if self.people is not None else ""

    def in_force(self) -> Record | None:
        """What all components follow; before the first controller, what was given. None: there is nothing."""
        if self.record is not None or self.given is None:
            return self.record
        return Record(self.given_text, self.changes_text)

    @property
    def is_settled(self) -> bool:
        """Whether the controller has decided about what is there now."""
        if self.record is None:
            return False
        both = (self.given_text, self.changes_text)
        return bool(self.record.refused.mistakes) or both == (self.record.text, self.record.changes)


async def read_objects(cluster: Cluster, namespace: str) -> Objects:
    """Raises `ClusterError`."""
    given, people = await find(cluster, GIVEN, namespace), await find(cluster, CHANGES, namespace)
    applied = await find(cluster, APPLIED, namespace)
    return Objects(given, people, record_of(applied) if applied is not None else None)


def sources(record: Record) -> dict[str, Source]:
    """Path of each field → where its value comes from. Raises `Unusable`."""
    given, people = dict(leaves(content_of(record.text))), dict(leaves(content_of(record.changes)))
    zone = record.configuration().lab.zone
    found = {}
    for leaf in every_field(Configuration()):
        if leaf.path in people:
            found[leaf.path] = _last_change(record, leaf.path, zone)
        else:
            found[leaf.path] = Source(INSTALLATION if leaf.path in given else DEFAULT)
    return found


def _last_change(record: Record, path: str, zone: tzinfo) -> Source:
    for change in reversed(record.history):
        if any(each.startswith(f"{path}: ") for each in change.changes):
            return Source(PEOPLE, change.by, recorded_at(change.at, zone), change.reason)
    return Source(PEOPLE)


def recorded_at(text: str, zone: tzinfo) -> str:
    """Write an instant of the record for people; as it is there if it cannot be read."""
    try:
        return moment(instant(text, APPLIED, "at"), zone)
    except Malformed:
        return text


def changed_text(there: str, values: Mapping[str, object]) -> str:
    """Return the second object with other values; one that is None is taken out. Raises `Unusable`."""
    content = content_of(there, CHANGED)
    for path, value in values.items():
        content = with_value(content, path, plain(value))
    return as_text(content) if content else ""


def why_not(objects: Objects, text: str) -> list[str]:
    """Say why the configuration could not be used if this were the second object."""
    try:
        read(objects.given_text, text)
    except Unusable as unusable:
        return unusable.mistakes
    return []


async def write_changes(cluster: Cluster, namespace: str, there: ConfigMap | None, text: str, why: ChangeNote) -> None:
    """Replace the second object, if it is still what was read.

    Raises `Conflict`, `AlreadyExists` or `NotFound` if somebody else changed it meanwhile, or another `ClusterError`.
    """
    body = body_of(CHANGES, namespace, {TEXT: text}, there.metadata.resource_version if there is not None else "")
    kept = there.metadata if there is not None else None
    body["metadata"]["annotations"] = {
        **(kept.annotations if kept else {}),
        CHANGED_BY: why.by,
        CHANGE_REASON: why.reason,
    }
    if kept is None:
        await cluster.create(CONFIG_MAPS, body, namespace)
    else:
        await cluster.update(CONFIG_MAPS, {**body, "metadata": {**body["metadata"], "labels": dict(kept.labels)}})
