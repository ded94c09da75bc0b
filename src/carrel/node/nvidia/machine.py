"""Looks at the cards, and listens for their errors (XID).

A card with a critical error is unusable until it has been quiet for a while, answers, and needs no reset. One that no
longer answers keeps its identity, so that everybody knows which card it is that nobody can have. Without a driver
there are no cards, the reason is told, and the next look tries again.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from carrel.ledger.gpus import Gpu, MiB
from carrel.node.interfaces import Look
from carrel.node.nvidia.nvml import Seen, islands, look_at, said

log = logging.getLogger(__name__)

QUIET_S = 300.0
"""How long after its last critical error a card is believed again."""
LISTEN_MS = 1000
SYSFS = Path("/sys")
NO_DRIVER_S = 5.0

A_PROGRAMS_FAULT = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a user's program causes; the card is as good as before."""
_DRIVER_IS_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)


class NvmlMachine:
    def __init__(
        self,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        quiet_s: float = QUIET_S,
        sysfs: Path = SYSFS,
    ) -> None:
        self._node = node
        self._clock = clock
        self._quiet_s = quiet_s
        self._sysfs = sysfs
        self._is_open = False
        self._known: dict[int, Gpu] = {}
        self._errors: dict[str, tuple[int, float]] = {}  # UUID → the last critical XID, and when
        self._events: Any = None
        self._listens_to: set[str] = set()

    async def look(self) -> Look:
        return await asyncio.to_thread(self._look)

    async def wait_changed(self) -> None:
        """Until a card reports a critical error."""
        while not (self._is_open and self._listens_to and await asyncio.to_thread(self._listen)):
            if not self._listens_to:
                await asyncio.sleep(NO_DRIVER_S)

    # --- looking -----------------------------------------------------------------------------------------------------

    def _look(self) -> Look:
        try:
            self._open()
            return self._look_at_all()
        except pynvml.NVMLError as error:
            if error.value in _DRIVER_IS_GONE:
                self._close()
            return Look((), f"no NVIDIA driver answers ({error}); without one this node has no cards to give")

    def _open(self) -> None:
        if not self._is_open:
            pynvml.nvmlInit()
            self._is_open = True
            self._events = said(pynvml.nvmlEventSetCreate)

    def _close(self) -> None:
        self._is_open, self._events, self._listens_to = False, None, set()

    def _look_at_all(self) -> Look:
        seen: dict[int, Seen] = {}
        silent: dict[int, str] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                seen[index] = look_at(handle, self._sysfs)
                self._listen_to(handle, seen[index].uuid)
            except pynvml.NVMLError as error:
                if error.value in _DRIVER_IS_GONE:
                    raise
                silent[index] = str(error)
        island_of = islands(seen.values())
        gpus = {index: self._gpu(index, card, island_of.get(card.uuid, "")) for index, card in seen.items()}
        answer = {card.uuid for card in seen.values()}
        lost = {
            i: replace(self._known[i], unusable=f"it does not answer: {silent[i]}")
            for i in silent
            if i in self._known and self._known[i].uuid not in answer  # else it has another index by now
        }
        self._known = gpus | lost
        strangers = [f"card {index}: {why}" for index, why in silent.items() if index not in lost]
        processes = {card.uuid: card.processes for card in seen.values()}
        return Look(tuple(self._known[index] for index in sorted(self._known)), "; ".join(strangers), processes)

    def _gpu(self, index: int, card: Seen, island: str) -> Gpu:
        return Gpu(
            uuid=card.uuid,
            node=self._node,
            index=index,
            model=card.model,
            memory=MiB(card.memory_mib),
            island=island,
            bandwidth_gbps=card.bandwidth_gbps if island else 0,
            unusable=card.trouble or self._error_of(card.uuid),
            numa_node=card.numa_node,
        )

    def _error_of(self, uuid: str) -> str:
        if uuid not in self._errors:
            return ""
        xid, at = self._errors[uuid]
        if self._clock() - at < self._quiet_s:
            return f"XID {xid}"
        del self._errors[uuid]
        log.info("card_recovered gpu=%s xid=%d", uuid, xid)
        return ""

    # --- listening ---------------------------------------------------------------------------------------------------

    def _listen_to(self, handle: Any, uuid: str) -> None:
        if self._events is None or uuid in self._listens_to:
            return
        wanted = pynvml.nvmlEventTypeXidCriticalError
        supported = said(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
        if supported is not None and supported & wanted:
            said(pynvml.nvmlDeviceRegisterEvents, handle, wanted, self._events)
            self._listens_to.add(uuid)

    def _listen(self) -> bool:
        """Whether a card had a critical error within the next second."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, LISTEN_MS)
            uuid, xid = pynvml.nvmlDeviceGetUUID(event.device), int(event.eventData)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._listens_to = set()  # the next look subscribes again, or finds the driver gone
            return False
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError or xid in A_PROGRAMS_FAULT:
            return False
        self._errors[uuid] = (xid, self._clock())
        log.warning("card_failed gpu=%s xid=%d", uuid, xid)
        return True
