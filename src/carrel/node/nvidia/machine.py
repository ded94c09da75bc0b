"""Reads the GPUs and what they do, and waits for their errors (XID).

A GPU with a critical error is unusable until it has had none for a while, answers, and needs no reset. A GPU that no
longer answers, or whose driver hangs, is still reported, with its UUID and as unusable. Without a driver there are no
GPUs, the reason is reported, and the next call tries again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pynvml

from carrel.dialects import mig
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpu_usage import NOTHING_KNOWN, GpuSample
from carrel.ledger.gpus import Gpu, MiB, MigSlice, slice_index
from carrel.node.interfaces import ControlGroup, GpuDetails, MachineState
from carrel.node.nvidia.limits import read_limits
from carrel.node.nvidia.mig import NvmlSlice, read_slices
from carrel.node.nvidia.nvml import MIB, NOT_SUPPORTED, if_supported, product
from carrel.node.nvidia.questions import DriverSilent, Questions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    uuid: GpuUuid
    model: str
    product_name: str
    compute_capability: tuple[int, int] | None
    memory_mib: int
    kept_mib: int
    """What the driver keeps of it for itself."""
    address: str
    """On the PCI bus; one end of its links."""
    links: tuple[str, ...]
    """The other ends: a GPU, or a switch."""
    bandwidth_gbps: int
    """Both ways, over all links together: what data sheets call the GPU's bandwidth."""
    numa_node: int | None
    processes: int
    trouble: str
    """Why the GPU cannot be used. Empty: it can."""
    slices: tuple[NvmlSlice, ...] | None = None
    """Its MIG slices; None: MIG is off."""


def read_gpu(handle: Any, sysfs: Path) -> NvmlGpu:
    address = _address(pynvml.nvmlDeviceGetPciInfo(handle))
    links, bandwidth = _links(handle)
    name: str = pynvml.nvmlDeviceGetName(handle)
    slices = read_slices(handle)
    return NvmlGpu(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        model=product(name),
        product_name=name,
        compute_capability=if_supported(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        memory_mib=_memory_mib(handle, slices),
        kept_mib=0 if slices else _kept_mib(handle),
        address=address,
        links=links,
        bandwidth_gbps=bandwidth,
        numa_node=_numa_node(sysfs, address),
        processes=len(if_supported(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()),
        trouble=_trouble(handle) or (NO_SLICES if slices == () else ""),
        slices=slices,
    )


def _memory_mib(handle: Any, slices: tuple[NvmlSlice, ...] | None) -> int:
    """A divided GPU may tell its memory only to some."""
    if not slices:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB)
    told = if_supported(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return told.total // MIB if told is not None else sum(each.memory_mib for each in slices)


def read_sample(handle: Any) -> GpuSample:
    """Ask the GPU what it does now; what it does not say is None, for whatever reason. Raises `NVMLError` if it does
    not answer at all."""
    errors: list[pynvml.NVMLError] = []

    def answer(ask: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return if_supported(ask, handle, *arguments)
        except pynvml.NVMLError as error:
            errors.append(error)
            return None

    rates = answer(pynvml.nvmlDeviceGetUtilizationRates)
    memory = answer(pynvml.nvmlDeviceGetMemoryInfo)
    milliwatts = answer(pynvml.nvmlDeviceGetPowerUsage)
    sample = GpuSample(
        rates.gpu / 100 if rates is not None else None,
        MiB(memory.used // MIB) if memory is not None else None,
        milliwatts / 1000 if milliwatts is not None else None,
        answer(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    )
    if errors and sample == NOTHING_KNOWN:
        raise errors[0]
    return sample


def versions() -> tuple[str, str]:
    """The versions of the driver, and of CUDA that it brings."""
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


def _links(handle: Any) -> tuple[tuple[str, ...], int]:
    """The other ends of its links, and what all of them carry."""
    ends: list[str] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link):
                ends.append(_address(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)))
        except pynvml.NVMLError as error:
            if error.value in (*NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                break  # it has no such link
            raise
    return tuple(ends), round(2 * len(ends) * _link_mbps(handle) / 1000) if ends else 0


def _link_mbps(handle: Any) -> int:
    """How fast one link is, in one direction."""
    answers = if_supported(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    return int(answers[0].value.uiVal) if answers and answers[0].nvmlReturn == pynvml.NVML_SUCCESS else 0


def _address(pci: Any) -> str:
    """`0000:3b:00.0`, as the kernel writes it; the library has four more digits for the domain."""
    text = pci.busId if isinstance(pci.busId, str) else pci.busId.decode()
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def _kept_mib(handle: Any) -> int:
    """Rounded up. 0: an older driver does not say it, or keeps nothing."""
    memory = if_supported(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return -(-memory.reserved // MIB) if memory is not None else 0


def _numa_node(sysfs: Path, address: str) -> int | None:
    try:
        number = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _trouble(handle: Any) -> str:
    _, _, is_pending, has_failed = if_supported(pynvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
    if has_failed:
        return "memory rows could not be remapped"
    return "memory rows are to be remapped: reset the GPU" if is_pending else ""


log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long a GPU may take to answer. A driver that has to wake it up first takes two or three seconds."""
QUIET_S = 300.0
"""How long after its last critical error a GPU is usable again."""
LISTEN_MS = 1000
NO_SLICES = "MIG is enabled on it, and it has no slices"
SYSFS = Path("/sys")
DRIVER_RETRY_S = 5.0

CAUSED_BY_PROGRAM = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a user's program causes; the GPU is not damaged."""
_DRIVER_LOST = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)


class DriverState(NamedTuple):
    gpus: int
    """How many it has."""
    version: str = ""
    cuda: str = ""


class NvmlMachine:
    def __init__(
        self,
        node: NodeName,
        clock: Callable[[], float] = time.monotonic,
        quiet_s: float = QUIET_S,
        sysfs: Path = SYSFS,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._node = node
        self._clock = clock
        self._quiet_s = quiet_s
        self._sysfs = sysfs
        self._is_open = False
        self._known: dict[int, tuple[Gpu, ...]] = {}  # index of a GPU → it, or its slices
        self._errors: dict[GpuUuid, tuple[int, float]] = {}  # UUID → the last critical XID, and when
        self._events: Any = None
        self._subscribed: set[GpuUuid] = set()
        self._handles: dict[GpuUuid, Any] = {}
        self._driver = Questions[str, DriverState](answer_s)
        self._gpus = Questions[int, NvmlGpu](answer_s)
        self._limits = Questions[str, dict[ControlGroup, MiB | None]](answer_s)
        self._samples = Questions[GpuUuid, GpuSample](answer_s)

    async def read_state(self) -> MachineState:
        driver = (await self._driver.ask({"driver": self._open}))["driver"]
        if isinstance(driver, DriverSilent):
            if not self._known:
                raise driver  # it may still wake its GPUs up: a report without them would take them away from pods
            return self._state({}, dict.fromkeys(self._known, "its driver hangs"), DriverState(0))
        if isinstance(driver, Exception):
            return self._without_driver(driver)
        answers = await self._gpus.ask({index: partial(self._read_gpu, index) for index in range(driver.gpus)})
        errors = {index: each for index, each in answers.items() if isinstance(each, Exception)}
        for error in errors.values():
            if _is_driver_lost(error) or not isinstance(error, pynvml.NVMLError | DriverSilent):
                return self._without_driver(error)
        seen = {index: each for index, each in answers.items() if isinstance(each, NvmlGpu)}
        return self._state(seen, {index: str(error) for index, error in errors.items()}, driver)

    async def sample(self) -> Mapping[GpuUuid, GpuSample]:
        known = {gpu.uuid for found in self._known.values() for gpu in found}
        handles = {uuid: each for uuid, each in dict(self._handles).items() if uuid in known}  # threads may add to it
        answers = await self._samples.ask({uuid: partial(read_sample, each) for uuid, each in handles.items()})
        return {uuid: answer for uuid, answer in answers.items() if isinstance(answer, GpuSample)}

    async def memory_limits(self, groups: Sequence[ControlGroup]) -> Mapping[ControlGroup, MiB | None]:
        answer = (await self._limits.ask({"limits": partial(read_limits, groups, dict(self._handles))}))["limits"]
        return answer if not isinstance(answer, Exception) else {}

    async def wait_changed(self) -> None:
        """Until a GPU reports a critical error."""
        while not (self._is_open and self._subscribed and await asyncio.to_thread(self._wait_event)):
            if not self._subscribed:
                await asyncio.sleep(DRIVER_RETRY_S)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _open(self) -> DriverState:
        if not self._is_open:
            pynvml.nvmlInit()
            self._is_open = True
            self._events = if_supported(pynvml.nvmlEventSetCreate)
        return DriverState(pynvml.nvmlDeviceGetCount(), *versions())

    def _without_driver(self, error: Exception) -> MachineState:
        """Raises the error if it is not the driver's."""
        if not isinstance(error, pynvml.NVMLError):
            raise error
        if _is_driver_lost(error):
            self._is_open, self._events, self._subscribed, self._handles = False, None, set(), {}
        return MachineState((), f"no NVIDIA driver answers ({error}); without one this node has no GPUs")

    def _read_gpu(self, index: int) -> NvmlGpu:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu = read_gpu(handle, self._sysfs)
        self._subscribe(handle, gpu.uuid)
        self._handles |= {each.uuid: each.handle for each in gpu.slices} if gpu.slices else {gpu.uuid: handle}
        return gpu

    def _state(self, seen: Mapping[int, NvmlGpu], silent: Mapping[int, str], driver: DriverState) -> MachineState:
        """`silent`: index of a GPU that did not answer → why."""
        island_of = islands(seen.values())
        gpus = {index: self._gpus_of(index, gpu, island_of.get(gpu.uuid, "")) for index, gpu in seen.items()}
        answer = {gpu.uuid for found in gpus.values() for gpu in found}
        lost = {
            i: tuple(replace(gpu, unusable=f"it does not answer: {silent[i]}") for gpu in self._known[i])
            for i in silent
            if i in self._known and self._known[i][0].uuid not in answer  # otherwise it has another index now
        }
        self._known = gpus | lost
        unknown = [f"GPU {index}: {why}" for index, why in silent.items() if index not in lost]
        processes = {each.uuid: each.processes for gpu in seen.values() for each in gpu.slices or (gpu,)}
        details = {
            each.uuid: GpuDetails(
                gpu.product_name, gpu.compute_capability, gpu.address, driver.version, driver.cuda, MiB(gpu.kept_mib)
            )
            for gpu in seen.values()
            for each in gpu.slices or (gpu,)
        }
        gpus_now = tuple(sorted((gpu for found in self._known.values() for gpu in found), key=lambda gpu: gpu.index))
        return MachineState(gpus_now, "; ".join(unknown), processes, details)

    def _gpus_of(self, index: int, gpu: NvmlGpu, island: str) -> tuple[Gpu, ...]:
        """What people may have of it: the GPU, or its slices, which are as healthy as it is."""
        whole = self._gpu(index, gpu, "" if gpu.slices else island)
        return tuple(
            replace(
                whole,
                uuid=each.uuid,
                index=slice_index(index, each.number),
                model=mig.model_of(gpu.model, each.profile),
                memory=MiB(each.memory_mib),
                slice=MigSlice(each.profile, gpu.uuid, index, whole.memory),
            )
            for each in gpu.slices or ()
        ) or (whole,)

    def _gpu(self, index: int, gpu: NvmlGpu, island: str) -> Gpu:
        return Gpu(
            uuid=gpu.uuid,
            node=self._node,
            index=index,
            model=gpu.model,
            memory=MiB(gpu.memory_mib),
            island=island,
            bandwidth_gbps=gpu.bandwidth_gbps if island else 0,
            unusable=gpu.trouble or self._error_of(gpu.uuid),
            numa_node=gpu.numa_node,
        )

    def _error_of(self, uuid: GpuUuid) -> str:
        if uuid not in self._errors:
            return ""
        xid, at = self._errors[uuid]
        if self._clock() - at < self._quiet_s:
            return f"XID {xid}"
        del self._errors[uuid]
        log.info("gpu_recovered gpu=%s xid=%d", uuid, xid)
        return ""

    # --- errors ------------------------------------------------------------------------------------------------------

    def _subscribe(self, handle: Any, uuid: GpuUuid) -> None:
        if self._events is None or uuid in self._subscribed:
            return
        wanted = pynvml.nvmlEventTypeXidCriticalError
        supported = if_supported(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
        if supported is not None and supported & wanted:
            if_supported(pynvml.nvmlDeviceRegisterEvents, handle, wanted, self._events)
            self._subscribed.add(uuid)

    def _wait_event(self) -> bool:
        """Whether a GPU reports a critical error within a second."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, LISTEN_MS)
            uuid, xid = pynvml.nvmlDeviceGetUUID(event.device), int(event.eventData)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._subscribed = set()  # the next call subscribes again, or finds no driver
            return False
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError or xid in CAUSED_BY_PROGRAM:
            return False
        self._errors[uuid] = (xid, self._clock())
        log.warning("gpu_failed gpu=%s xid=%d", uuid, xid)
        return True


def _is_driver_lost(error: Exception) -> bool:
    return isinstance(error, pynvml.NVMLError) and error.value in _DRIVER_LOST
