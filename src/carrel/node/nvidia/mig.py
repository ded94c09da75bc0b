"""Reads the MIG slices of a GPU: parts that its admin has made, each with memory and processors of its own."""

import re
from dataclasses import dataclass
from math import ceil
from typing import Any

import pynvml

from carrel.ids import GpuUuid
from carrel.node.nvidia.nvml import MIB, if_supported

GIB = 1024
_IN_A_NAME = re.compile(r" MIG (\S+)$")


@dataclass(frozen=True, slots=True)
class NvmlSlice:
    uuid: GpuUuid
    number: int
    """Among the slices of its GPU, as `nvidia-smi -L` counts them."""
    profile: str
    memory_mib: int
    processes: int
    handle: Any


def read_slices(handle: Any) -> tuple[NvmlSlice, ...] | None:
    """None: MIG is off, or this GPU has none."""
    is_on, _ = if_supported(pynvml.nvmlDeviceGetMigMode, handle) or (0, 0)
    if not is_on:
        return None
    count = if_supported(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    found = {number: _slice_handle(handle, number) for number in range(count)}
    return tuple(_slice(handle, number, each) for number, each in found.items() if each is not None)


def _slice_handle(handle: Any, number: int) -> Any:
    """None: there is no slice of that number."""
    try:
        return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            return None
        raise


def _slice(parent: Any, number: int, handle: Any) -> NvmlSlice:
    memory_mib = pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB
    return NvmlSlice(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        number=number,
        profile=_profile(parent, handle, memory_mib),
        memory_mib=memory_mib,
        processes=len(if_supported(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()),
        handle=handle,
    )


def _profile(parent: Any, handle: Any, memory_mib: int) -> str:
    """`1g.10gb`, as in the name of its resource, where a dot stands for the plus of `1g.10gb+me`.

    The name of the slice ends with it; where it does not, it is made of how many parts the slice has, and of how many
    eighths of the memory.
    """
    if named := _IN_A_NAME.search(pynvml.nvmlDeviceGetName(handle)):
        return named[1].replace("+", ".")
    parts = pynvml.nvmlDeviceGetAttributes_v2(handle)
    compute, all_parts = parts.computeInstanceSliceCount, parts.gpuInstanceSliceCount
    told = if_supported(pynvml.nvmlDeviceGetMemoryInfo, parent)
    of_mib = told.total // MIB if told else memory_mib
    gib = round(ceil(8 * memory_mib / of_mib) / 8 * ceil(of_mib / GIB))
    return f"{f'{compute}c.' if compute < all_parts else ''}{all_parts}g.{gib}gb"
