"""The one card that this container sees: from the driver's files, else from NVML, else from what the plugin said.

The first of them that sees a card decides. One that cannot say, because it is not there or cannot be read, is skipped,
and its reason is told if no other knows either. More than one card is never guessed about.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pynvml

from carrel.dialects import nvidia
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed

DRIVER_FILES = Path("/proc/driver/nvidia/gpus")


class Unsaid(Exception):
    """A source does not know."""


@dataclass(frozen=True, slots=True)
class Sources:
    environment: Mapping[str, str]
    files: Path = DRIVER_FILES
    """One folder for each card; NVIDIA's runtime shows a container only its own."""


def visible_card(sources: Sources) -> str | Refusal:
    """Its UUID."""
    troubles = []
    for look in _ways(sources):
        try:
            uuids = look()
        except (Unsaid, Malformed, OSError) as trouble:
            troubles.append(str(trouble))
            continue
        if len(uuids) == 1:
            return uuids[0]
        return Refusal(f"{len(uuids)} cards are visible, {', '.join(uuids)}; a reservation is for one")
    return Refusal(f"no card is visible: {'; '.join(troubles)}")


def _ways(sources: Sources) -> Sequence[Callable[[], Sequence[str]]]:
    return (lambda: _in_files(sources.files), _in_nvml, lambda: _in_environment(sources.environment))


def _in_files(folder: Path) -> Sequence[str]:
    files = sorted(folder.glob("*/information"))
    if not files:
        raise Unsaid(f"{folder} has no card")
    return [nvidia.uuid_in(file.read_text(errors="replace"), str(file)) for file in files]


def _in_nvml() -> Sequence[str]:
    try:
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise Unsaid(f"NVML: {error}") from None
    if not uuids:
        raise Unsaid("NVML has no card")
    return uuids


def _in_environment(environment: Mapping[str, str]) -> Sequence[str]:
    text = environment.get(nvidia.VISIBLE_DEVICES, "")
    uuids = [word for word in text.split(",") if nvidia.is_uuid(word)]
    if not uuids or len(uuids) < len(text.split(",")):
        raise Unsaid(f"{nvidia.VISIBLE_DEVICES} is {text!r}, and no list of UUIDs")
    return uuids
