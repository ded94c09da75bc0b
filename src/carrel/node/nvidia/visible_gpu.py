"""The one GPU that this container sees: from the driver's files, else from NVML, else from what the plugin set.

The first source that shows a GPU decides. A source that is missing or cannot be read is skipped; its reason is part of
the refusal if no other source knows either. If a source shows more than one GPU, the environment decides: where that
names one of them, it is the one; else none is chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pynvml

from carrel.dialects import nvidia
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed

DRIVER_FILES = Path("/proc/driver/nvidia/gpus")


class SourceUnavailable(Exception):
    """A source does not show any GPU."""


@dataclass(frozen=True, slots=True)
class GpuSources:
    environment: Mapping[str, str]
    files: Path = DRIVER_FILES
    """One folder for each GPU; NVIDIA's runtime shows a container only its own."""


def visible_gpu(sources: GpuSources) -> str | Refusal:
    """Its UUID."""
    troubles = []
    for read in _sources_in_order(sources):
        try:
            uuids = read()
        except (SourceUnavailable, Malformed, OSError) as trouble:
            troubles.append(str(trouble))
            continue
        named = [uuid for uuid in uuids if uuid in _named(sources.environment)]
        for found in (uuids, named):
            if len(found) == 1:
                return found[0]
        return Refusal(f"{len(uuids)} GPUs are visible, {', '.join(uuids)}; a reservation pod holds one")
    return Refusal(f"no GPU is visible: {'; '.join(troubles)}")


def shown_by_driver(sources: GpuSources) -> list[str]:
    """All GPUs that the driver shows in this container, by UUID; what the environment says does not count."""
    for read in _sources_in_order(sources)[:-1]:
        try:
            return list(read())
        except (SourceUnavailable, Malformed, OSError):
            continue
    return []


def _sources_in_order(sources: GpuSources) -> Sequence[Callable[[], Sequence[str]]]:
    return (lambda: _in_files(sources.files), _in_nvml, lambda: _in_environment(sources.environment))


def _in_files(folder: Path) -> Sequence[str]:
    files = sorted(folder.glob("*/information"))
    if not files:
        raise SourceUnavailable(f"{folder} has no GPU")
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
        raise SourceUnavailable(f"NVML: {error}") from None
    if not uuids:
        raise SourceUnavailable("NVML has no GPU")
    return uuids


def _named(environment: Mapping[str, str]) -> Sequence[str]:
    return [word.strip() for word in environment.get(nvidia.VISIBLE_DEVICES, "").split(",")]


def _in_environment(environment: Mapping[str, str]) -> Sequence[str]:
    text = environment.get(nvidia.VISIBLE_DEVICES, "")
    uuids = [word for word in text.split(",") if nvidia.is_uuid(word)]
    if not uuids or len(uuids) < len(text.split(",")):
        raise SourceUnavailable(f"{nvidia.VISIBLE_DEVICES} is {text!r}, not a list of UUIDs")
    return uuids
