"""Looks at what this container sees of GPUs, and says it: `carrel doctor --probe` runs it in pods."""

import json
import os
from pathlib import Path

import typer

from carrel.dialects import nvidia
from carrel.node.nvidia.visible_gpu import GpuSources, shown_by_driver
from carrel.node.settings import VisibleGpusSettings

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
