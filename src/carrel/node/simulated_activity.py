"""PURE. What a simulated GPU does: like people's programs, so that telemetry can be tried without a GPU.

training   busy most of the time, with short breaks in which it saves
notebook   a few minutes of work, then a long time nothing; the memory stays in use
loading    it waits for its data more than it computes
idle       holds memory and does nothing
stuck      works, and its counter says 0: power and memory tell
"""

from datetime import datetime
from enum import Enum
from zlib import crc32

from carrel.ledger.gpu_usage import GpuSample
from carrel.ledger.gpus import MiB


class Activity(Enum):
    TRAINING = "training"
    NOTEBOOK = "notebook"
    LOADING = "loading"
    IDLE = "idle"
    STUCK = "stuck"


UNUSED = GpuSample(0.0, MiB(0), 25.0, 32)


def sample_of(activity: Activity, name: str, memory: MiB, at: datetime) -> GpuSample:
    """Return what a GPU does for the program `name`, which may use so much memory. The same arguments give the same."""
    second = int(at.timestamp()) + crc32(name.encode()) % 3600  # programs do not work in step
    minute, flicker = second // 60, second * 7 % 5 / 100
    if activity is Activity.TRAINING:
        return _sample(0.1 if minute % 20 == 19 else 0.93 + flicker, 0.85, memory)
    if activity is Activity.NOTEBOOK:
        return _sample(0.4 + 4 * flicker if minute % 45 < 6 and second % 60 < 40 else 0.0, 0.3, memory)
    if activity is Activity.LOADING:
        return _sample(0.7 if second % 60 < 15 else 0.1, 0.5, memory)
    if activity is Activity.IDLE:
        return _sample(0.0, 0.6, memory)
    working = _sample(0.8, 0.5 + flicker, memory)
    return GpuSample(0.0, working.used, working.power_watts, working.temperature_celsius)


def _sample(utilisation: float, part: float, memory: MiB) -> GpuSample:
    return GpuSample(utilisation, MiB(int(part * memory)), 55 + 250 * utilisation, 38 + int(40 * utilisation))
