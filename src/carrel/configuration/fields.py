"""How a field of the configuration is declared: its default, what it means, its limits, and when it may change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

INFO = "configuration"


class Change(Enum):
    """When a change of a field takes effect."""

    AT_ONCE = "at once"
    RESTART = "when the components that read it have started again, which they do by themselves"
    WHEN_FREE = "only while no pod holds a GPU; until then it is refused"


@dataclass(frozen=True, slots=True)
class Info:
    """What is known of a field besides its type and its default."""

    help: str
    example: str
    change: Change
    least: Any = None
    most: Any = None


def entry(
    default: T, help: str, *, example: str = "", change: Change = Change.AT_ONCE, least: Any = None, most: Any = None
) -> T:
    """Declare a field. `example`: a value as it is written in the file, where the default is not one."""
    info = {INFO: Info(help, example, change, least, most)}
    made: T = (
        field(default_factory=lambda: default, metadata=info)
        if isinstance(default, Mapping)
        else field(default=default, metadata=info)
    )
    return made


def key_of(name: str) -> str:
    """Return how a field is called in the file: `max_gpus` → `maxGpus`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
