"""The cluster's configuration, as the booking service shows it to admins and lets them change a part of it.

What may be changed here is written to an object of its own (`cluster.configuration_changes`); the elected controller
decides whether it takes effect, and every component follows.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.cluster.configuration_changes import (
    ChangeNote,
    Source,
    changed_text,
    read_objects,
    sources,
    why_not,
    write_changes,
)
from carrel.configuration.current import CurrentConfiguration, changes
from carrel.configuration.reading import (
    Leaf,
    Unusable,
    as_text,
    content_of,
    every_field,
    may_people_change,
    read,
    typed,
    with_value,
    written,
)
from carrel.configuration.schema import Configuration
from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, Conflict, NotFound

IN_FORCE_S = 5.0
POLL_S = 0.1
CHANGED_MEANWHILE = "Somebody else changed it at the same time. Look at it as it is now, then try again."

UNDECIDED = "No controller has decided about the last change yet; it takes effect when one leads."


class NotSaved(Exception):
    """Why nothing was changed, in sentences for people."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__(" ".join(mistakes))
        self.mistakes = mistakes


@dataclass(frozen=True, slots=True)
class LabConfiguration:
    current: CurrentConfiguration = field(default_factory=lambda: CurrentConfiguration(Configuration()))
    cluster: Cluster | None = None
    """None: the configuration is a file, and nothing is changed here."""
    namespace: str = "carrel"

    def fields(self) -> list[Leaf]:
        return list(every_field(self.current.value))

    def tried(self, asked: Mapping[str, str]) -> Configuration | None:
        """Return the configuration with the values of a form; None if the form is empty or changes nothing.

        Raises `Unusable`.
        """
        values = self._changed(asked)
        if not values:
            return None
        content = content_of(written(self.current.value))
        for path, value in values.items():
            content = with_value(content, path, value)
        return read(as_text(content))

    def _changed(self, asked: Mapping[str, str]) -> dict[str, object]:
        """The values in the form that its person changed, and that differ from those in force."""
        return {
            leaf.path: typed(text)
            for leaf in self.fields()
            if may_people_change(leaf.path)
            and (text := asked.get(leaf.path, "").strip()) not in ("", shown(leaf.value), _seen(leaf, asked))
        }

    def shown_in_form(self, asked: Mapping[str, str]) -> dict[str, str]:
        """What stands in each field of the form: what its person wrote there, or else what is in force."""
        texts = [(leaf, asked.get(leaf.path, "").strip()) for leaf in self.fields()]
        return {leaf.path: shown(leaf.value) if text in ("", _seen(leaf, asked)) else text for leaf, text in texts}

    def _changed_meanwhile(self, asked: Mapping[str, str]) -> list[str]:
        """Say which of the fields that the form changes somebody else has changed since it was shown."""
        changed = self._changed(asked)
        return [
            f"Somebody else changed {leaf.path} meanwhile, from {_seen(leaf, asked)} to {shown(leaf.value)}."
            " Save again if yours shall count."
            for leaf in self.fields()
            if leaf.path in changed and _seen(leaf, asked) != shown(leaf.value)
        ]

    async def sources(self) -> tuple[Mapping[str, Source], list[str]]:
        """Return where each value comes from, and why what is given is not in force. Raises `ClusterError`."""
        if self.cluster is None:
            return {}, []
        objects = await read_objects(self.cluster, self.namespace)
        record = objects.in_force()
        if record is None:
            return {}, []
        try:
            return sources(record), record.refused.mistakes if objects.is_settled else [UNDECIDED]
        except Unusable as unusable:
            return {}, unusable.mistakes

    async def save(self, asked: Mapping[str, str], by: str, reason: str) -> list[str]:
        """Change what differs, and wait a moment until it is in force. Return the changes in words.

        Raises `NotSaved`.
        """
        if self.cluster is None:
            raise NotSaved(["The configuration is the file of --config; change it there."])
        try:
            wanted = self.tried(asked)
            if wanted is None:
                raise NotSaved(["Nothing differs from what is in force."])
            if conflicts := self._changed_meanwhile(asked):
                raise NotSaved(conflicts)
            objects = await read_objects(self.cluster, self.namespace)
            text = changed_text(objects.changes_text, self._changed(asked))
            if mistakes := why_not(objects, text):
                raise NotSaved(mistakes)
            said = [str(each) for each in changes(self.current.value, wanted)]
            await write_changes(self.cluster, self.namespace, objects.people, text, ChangeNote(by, reason))
        except Unusable as unusable:
            raise NotSaved(unusable.mistakes) from None
        except (Conflict, AlreadyExists, NotFound):
            raise NotSaved([CHANGED_MEANWHILE]) from None
        except ClusterError as error:
            raise NotSaved([f"The cluster did not take it: {error}"]) from None
        await self._wait_in_force(wanted)
        return said

    async def _wait_in_force(self, wanted: Configuration) -> None:
        try:
            async with asyncio.timeout(IN_FORCE_S):
                while self.current.value != wanted:  # noqa: ASYNC110 # the watch sets it
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pass  # the page shows what is in force, and why the rest is not


SEEN = "seen:"
"""Before the path of a field: what the form showed there. Two people may change different fields at once."""


def _seen(leaf: Leaf, asked: Mapping[str, str]) -> str:
    return asked.get(f"{SEEN}{leaf.path}", "").strip() or shown(leaf.value)


def shown(value: object) -> str:
    """Return a value as people type it: `4`, `true`, `14d`; several with commas between them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {each}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
