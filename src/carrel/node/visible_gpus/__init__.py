"""`carrel visible-gpus`: what the container that it runs in sees of GPUs. `carrel doctor --probe` runs it in pods.

run     looks, and says it
"""

from dataclasses import dataclass
from pathlib import Path

from carrel.option_fields import option

__all__ = ["VisibleGpusSettings", "visible_gpus"]


@dataclass(frozen=True)
class VisibleGpusSettings:
    write: Path | None = option(None, "File to write it to as well, such as /dev/termination-log.")
    """The kubelet shows what is in that file as the message of a container that has ended."""


def visible_gpus(settings: VisibleGpusSettings) -> None:
    """Print which GPUs this container sees, as one line of JSON: for `carrel doctor`, which runs it in pods.

    `variable` is what the environment says, `driver` the UUIDs that the driver shows, `files` the devices of GPUs.

    Examples:

      carrel visible-gpus

      carrel visible-gpus --write /dev/termination-log
    """
    from carrel.node.visible_gpus.run import run

    run(settings)
