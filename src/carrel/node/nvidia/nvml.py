"""What NVML says about one GPU, and how GPUs are linked. Old drivers lack functions, and old GPUs lack answers: what is
not supported is left out. Any other failure raises `NVMLError`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

MIB = 1024 * 1024

_NOT_SUPPORTED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE,  # the list grew while it was read
)


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    uuid: str
    model: str
    product_name: str
    compute_capability: tuple[int, int] | None
    memory_mib: int
    address: str
    """On the PCI bus; one end of its links."""
    links: tuple[str, ...]
    """The other ends: a GPU, or a switch."""
    bandwidth_gbps: int
    """Both ways, over all links together: what data sheets call the GPU's bandwidth."""
    numa_node: int | None
    processes: int
    trouble: str
    """Why the GPU cannot be used as a whole. Empty: it can."""


def read_gpu(handle: Any, sysfs: Path) -> NvmlGpu:
    address = _address(pynvml.nvmlDeviceGetPciInfo(handle))
    links, bandwidth = _links(handle)
    name: str = pynvml.nvmlDeviceGetName(handle)
    return NvmlGpu(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        model=product(name),
        product_name=name,
        compute_capability=if_supported(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        memory_mib=pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB,
        address=address,
        links=links,
        bandwidth_gbps=bandwidth,
        numa_node=_numa_node(sysfs, address),
        processes=len(if_supported(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()),
        trouble=_trouble(handle),
    )


def product(name: str) -> str:
    """A model as the node label `gpu.product` of NVIDIA's feature discovery spells it."""
    return re.sub(r"[^A-Za-z0-9._-]", "", name.replace(" ", "-"))


def versions() -> tuple[str, str]:
    """Of the driver, and of CUDA that it brings."""
    driver, cuda = (
        if_supported(pynvml.nvmlSystemGetDriverVersion),
        if_supported(pynvml.nvmlSystemGetCudaDriverVersion_v2),
    )
    return driver or "", f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""


def islands(gpus: Iterable[NvmlGpu]) -> Mapping[str, str]:
    """UUID → island, for GPUs that are linked to another one, directly or through switches."""
    gpus = tuple(gpus)
    parent: dict[str, str] = {}

    def root(end: str) -> str:
        while parent.setdefault(end, end) != end:
            end = parent[end]
        return end

    for gpu in gpus:
        for end in gpu.links:
            parent[root(end)] = root(gpu.address)
    groups: dict[str, list[NvmlGpu]] = {}
    for gpu in gpus:
        groups.setdefault(root(gpu.address), []).append(gpu)
    linked = [group for group in groups.values() if len(group) > 1]
    return {gpu.uuid: f"nvlink-{number}" for number, group in enumerate(linked) for gpu in group}


def if_supported(ask: Callable[..., T], *arguments: Any) -> T | None:
    """None if this driver or this GPU does not support the call."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_SUPPORTED:
            return None
        raise


def _links(handle: Any) -> tuple[tuple[str, ...], int]:
    """The other ends of its links, and what all of them carry."""
    ends: list[str] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link):
                ends.append(_address(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)))
        except pynvml.NVMLError as error:
            if error.value in (*_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                break  # it has no such link
            raise
    return tuple(ends), round(2 * len(ends) * _link_mbps(handle) / 1000) if ends else 0


def _link_mbps(handle: Any) -> int:
    """Of one link, in one direction."""
    answers = if_supported(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    return int(answers[0].value.uiVal) if answers and answers[0].nvmlReturn == pynvml.NVML_SUCCESS else 0


def _address(pci: Any) -> str:
    """`0000:3b:00.0`, as the kernel writes it; the library has four more digits for the domain."""
    text = pci.busId if isinstance(pci.busId, str) else pci.busId.decode()
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def _numa_node(sysfs: Path, address: str) -> int | None:
    try:
        number = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _trouble(handle: Any) -> str:
    mig, _ = if_supported(pynvml.nvmlDeviceGetMigMode, handle) or (0, 0)
    _, _, is_pending, has_failed = if_supported(pynvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    if mig:
        return "it is divided into MIG slices, which Carrel does not manage"
    if has_failed:
        return "memory rows could not be remapped"
    return "memory rows are to be remapped: reset the GPU" if is_pending else ""
