"""What the driver says about the memory limits of control groups; from release 615 on."""

from collections.abc import Iterable, Mapping
from typing import Any

import pynvml

from carrel.ids import GpuUuid
from carrel.ledger.gpus import MiB
from carrel.node.interfaces import ControlGroup

MIB = 1024 * 1024
UNLIMITED = 2**64 - 1
"""The limit of a control group that has none."""


def read_limits(groups: Iterable[ControlGroup], handles: Mapping[GpuUuid, Any]) -> dict[ControlGroup, MiB | None]:
    """Only those of which the driver says it: an older one knows no limits, and a control group may have ended."""
    found: dict[ControlGroup, MiB | None] = {}
    for group in groups:
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
        limits.nameSpace = group.path.encode()
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(handles[group.gpu], limits)
            is_limited = limits.hardLimit != UNLIMITED
            found[group] = MiB(limits.hardLimit // MIB) if is_limited else None
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                found[group] = None
        except KeyError:
            continue  # a GPU that has gone
    return found
