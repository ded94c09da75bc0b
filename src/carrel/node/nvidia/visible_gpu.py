"""Which GPUs this container sees. A reservation pod holds the one that it sees; in pods of `carrel doctor --probe` a
program says all of them.

The one GPU is told by the driver's files, else by NVML, else by what the plugin set: the first source that shows a GPU
decides. A source that is missing or cannot be read is skipped; its reason is part of the refusal if no other source
knows either. If a source shows more than one GPU, the environment decides: where that names one of them, it is the one;
else none is chosen.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pynvml
import typer

from carrel.dialects import nvidia
from carrel.ids import GpuUuid
from carrel.ledger.refusals import Refusal
from carrel.node.settings import VisibleGpusSettings
from carrel.parsing import Malformed

DRIVER_FILES = Path("/proc/driver/nvidia/gpus")


class SourceUnavailable(Exception):
    """A source does not show any GPU."""


@dataclass(frozen=True, slots=True)
class GpuSources:
    environment: Mapping[str, str]
    files: Path = DRIVER_FILES
    """One folder for each GPU; NVIDIA's runtime shows a container only its own."""


def visible_gpu(sources: GpuSources) -> GpuUuid | Refusal:
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


def shown_by_driver(sources: GpuSources) -> list[GpuUuid]:
    """All GPUs that the driver shows in this container, by UUID; what the environment says does not count."""
    for read in _sources_in_order(sources)[:-1]:
        try:
            return list(read())
        except (SourceUnavailable, Malformed, OSError):
            continue
    return []


def _sources_in_order(sources: GpuSources) -> Sequence[Callable[[], Sequence[GpuUuid]]]:
    return (lambda: _in_files(sources.files), _in_nvml, lambda: _in_environment(sources.environment))


def _in_files(folder: Path) -> Sequence[GpuUuid]:
    files = sorted(folder.glob("*/information"))
    if not files:
        raise SourceUnavailable(f"{folder} has no GPU")
    return [nvidia.uuid_in(file.read_text(errors="replace"), str(file)) for file in files]


def _in_nvml() -> Sequence[GpuUuid]:
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


def _in_environment(environment: Mapping[str, str]) -> Sequence[GpuUuid]:
    text = environment.get(nvidia.VISIBLE_DEVICES, "")
    uuids = [GpuUuid(word) for word in text.split(",") if nvidia.is_uuid(word)]
    if not uuids or len(uuids) < len(text.split(",")):
        raise SourceUnavailable(f"{nvidia.VISIBLE_DEVICES} is {text!r}, not a list of UUIDs")
    return uuids


DEVICE_FILES = Path("/dev")


def run(settings: VisibleGpusSettings) -> None:
    seen = {
        "variable": os.environ.get(nvidia.VISIBLE_DEVICES, ""),
        "driver": shown_by_driver(GpuSources(os.environ)),
        "files": device_files(DEVICE_FILES),
    }
    line = json.dumps(seen)
    if settings.write is not None:
        settings.write.write_text(line)
    typer.echo(line)


def device_files(folder: Path) -> list[str]:
    """Those of single GPUs: /dev/nvidia0, not /dev/nvidiactl."""
    return sorted(str(each) for each in folder.glob("nvidia[0-9]*"))
