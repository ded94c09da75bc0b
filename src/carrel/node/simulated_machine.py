"""A machine whose GPUs are described by a file, for tests, CI and trying it out. Edit the file, and the GPUs change.

A file that cannot be read is logged with the line of the error; until it is corrected, the GPUs stay as they were.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from carrel.cluster_file import is_short_form, read_activities, read_drivers, read_gpus, text_in
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpu_usage import GpuSample
from carrel.ledger.gpus import MiB
from carrel.node.interfaces import ControlGroup, GpuDetails, MachineState
from carrel.node.simulated_activity import UNUSED, Activity, sample_of
from carrel.parsing import Malformed

log = logging.getLogger(__name__)

POLL_S = 0.5


class SimulatedMachine:
    def __init__(self, given: Path | str, node: NodeName) -> None:
        """`given`: the file, or GPUs in short, such as `8xTesla-T4:15360`.

        Raises `Malformed` or `OSError` if it cannot be used at the start.
        """
        self._name = Path(given).name
        self._contents: Callable[[], str] = lambda: str(given)
        if not is_short_form(str(given)):
            self._contents = lambda: text_in(Path(given))
        self._node = node
        self._trouble = ""
        self._take(self._contents())

    def _take(self, text: str) -> None:
        gpus, words = read_gpus(text, self._name, self._node), read_activities(text, self._name)
        self._activities = {
            gpu.uuid: _activity(word, self._name) for gpu, word in zip(gpus, words, strict=True) if word
        }
        drivers = zip(gpus, read_drivers(text, self._name), strict=True)
        self._details = {gpu.uuid: GpuDetails(driver_version=release, kept=mib) for gpu, (mib, release) in drivers}
        self._read, self._gpus = text, gpus

    async def read_state(self) -> MachineState:
        try:
            text = self._contents()
            if text != self._read or self._trouble:
                self._take(text)
            self._trouble = ""
        except (Malformed, OSError) as error:
            if str(error) != self._trouble:
                log.warning("simulation_not_read file=%s: %s", self._name, error)
            self._trouble = str(error)
        return MachineState(self._gpus, self._trouble, details=self._details)

    async def sample(self) -> Mapping[GpuUuid, GpuSample]:
        now, does = datetime.now(UTC), self._activities
        return {
            gpu.uuid: sample_of(does[gpu.uuid], gpu.uuid, gpu.memory, now) if gpu.uuid in does else UNUSED
            for gpu in self._gpus
        }

    async def memory_limits(self, groups: Sequence[ControlGroup]) -> Mapping[ControlGroup, MiB | None]:
        return {}  # nobody limits a simulated GPU

    async def wait_changed(self) -> None:
        # By its contents: an editor, a ConfigMap or a fast test may not change size and time.
        while self._contents_or_read() == self._read:  # noqa: ASYNC110 # files send no events
            await asyncio.sleep(POLL_S)

    def _contents_or_read(self) -> str:
        try:
            return self._contents()
        except (OSError, Malformed):
            return self._read


def _activity(word: str, source: str) -> Activity:
    try:
        return Activity(word)
    except ValueError:
        expected = ", ".join(each.value for each in Activity)
        raise Malformed(source, "activity", word, expected) from None
