"""The configuration that is in force in a process, and what of a change it can take over while it runs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from carrel.configuration.fields import Change
from carrel.configuration.reading import every_field, shortened
from carrel.configuration.schema import Configuration

T = TypeVar("T")

LONGEST = 200
"""Characters of a value in a sentence about its change."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field whose value changes."""

    path: str
    old: Any
    new: Any
    """Both as they are written in the file."""
    change: Change

    def __str__(self) -> str:
        """It is kept in the history: of many names, those that differ; of a long value, its beginning."""
        old, new = self.old, self.new
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            old, new = ({key: of[key] for key in of if old.get(key) != new.get(key)} for of in (old, new))
        return f"{self.path}: {shortened(str(old), LONGEST)} → {shortened(str(new), LONGEST)}"


def changes(old: Configuration, new: Configuration) -> Iterator[FieldChange]:
    """Yield every field that differs."""
    for before, after in zip(every_field(old), every_field(new), strict=True):
        if before.value != after.value:
            yield FieldChange(before.path, before.value, after.value, before.info.change)


class CurrentConfiguration:
    """The configuration in force. Whoever must know of a change says so once, by `follow` or `on_change`."""

    def __init__(self, value: Configuration) -> None:
        self.value = value
        self._listeners: list[Callable[[Configuration], None]] = []

    def on_change(self, listener: Callable[[Configuration], None]) -> None:
        self._listeners.append(listener)

    def follow(self, make: Callable[[Configuration], T]) -> T:
        """Return options made of the configuration. Their fields change with it: whoever decides by them reads them for
        each decision, and what was decided before stays."""
        options = make(self.value)

        def renew(new: Configuration) -> None:
            made = make(new)
            for each in fields(options):  # type: ignore[arg-type] # a dataclass that is not frozen
                setattr(options, each.name, getattr(made, each.name))

        self.on_change(renew)
        return options

    def apply(self, new: Configuration) -> None:
        """Take over what can be changed while the process runs; for the rest it has to start again."""
        self.value = new
        for listener in self._listeners:
            listener(new)
