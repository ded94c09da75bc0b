"""A machine whose GPUs are described by a file, for tests, CI and trying it out. Edit the file, and the GPUs change.

A file that cannot be read is logged with the line of the error; until it is corrected, the GPUs stay as they were.
"""

import asyncio
import logging
from pathlib import Path

from carrel.cluster_file import read_gpus, text_in
from carrel.ledger.gpus import Gpu
from carrel.node.interfaces import MachineState
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

POLL_S = 0.5


class SimulatedMachine:
    def __init__(self, file: Path, node: str) -> None:
        """Raises `Malformed` or `OSError` if the file cannot be used at the start."""
        self._file = file
        self._node = node
        self._read = text_in(file)
        self._gpus: tuple[Gpu, ...] = read_gpus(self._read, file.name, node)
        self._trouble = ""

    async def read_state(self) -> MachineState:
        try:
            text = text_in(self._file)
            if text != self._read or self._trouble:
                self._read = text
                self._gpus = read_gpus(text, self._file.name, self._node)
            self._trouble = ""
        except (Malformed, OSError) as error:
            if str(error) != self._trouble:
                log.warning("simulation_not_read file=%s: %s", self._file, error)
            self._trouble = str(error)
        return MachineState(self._gpus, self._trouble)

    async def wait_changed(self) -> None:
        # By its contents: an editor, a ConfigMap or a fast test may not change size and time.
        while self._contents() == self._read:  # noqa: ASYNC110 # files send no events
            await asyncio.sleep(POLL_S)

    def _contents(self) -> str:
        try:
            return text_in(self._file)
        except (OSError, Malformed):
            return self._read
