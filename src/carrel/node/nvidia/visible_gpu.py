"""Which GPUs this container sees. A reservation pod holds the one that it sees; in pods of `carrel doctor --probe` a
program says all of them.

A MIG slice is told by NVML, else by what the plugin set: the driver's files name only the GPU that it is a part of.
The one GPU is told by the driver's files, else by NVML, else by what the plugin set: the first source that shows a GPU
decides. A source that is missing or cannot be read is skipped; its reason is part of the refusal if no other source
knows either. If a source shows more than one GPU, the environment decides: where that names one of them, it is the one;
else none is chosen.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import typer

from carrel.dialects import mig, nvidia
from carrel.ids import GpuUuid
from carrel.ledger.refusals import Refusal
from carrel.node.nvidia.mig import read_slices
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
    if len(slices := [each for each in _named(sources.environment) if each.startswith(mig.UUID)]) == 1:
        return GpuUuid(slices[0])
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
    in_environment = lambda: _in_environment(sources.environment)  # noqa: E731 # one of four alike
    return _slices_in_nvml, lambda: _in_files(sources.files), _in_nvml, in_environment


def _in_files(folder: Path) -> Sequence[GpuUuid]:
    files = sorted(folder.glob("*/information"))
    if not files:
        raise SourceUnavailable(f"{folder} has no GPU")
    return [nvidia.uuid_in(file.read_text(errors="replace"), str(file)) for file in files]


def _in_nvml() -> Sequence[GpuUuid]:
    with _nvml() as handles:
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    if not uuids:
        raise SourceUnavailable("NVML has no GPU")
    return uuids


def _slices_in_nvml() -> Sequence[GpuUuid]:
    with _nvml() as handles:
        uuids = [each.uuid for handle in handles for each in read_slices(handle) or ()]
    if not uuids:
        raise SourceUnavailable("NVML has no MIG slice")
    return uuids


@contextmanager
def _nvml() -> Iterator[Sequence[Any]]:
    """The handles of all GPUs."""
    try:
        pynvml.nvmlInit()
        try:
            yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise SourceUnavailable(f"NVML: {error}") from None


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
