"""How pages and answers write times, durations, memory and models, each in one way.

`Tue 24 Nov 14:00`, `3 d 4 h`, `7.9 GiB`, `RTX A6000`. Tables and tooltips have the exact values.
"""

import re
from datetime import date, timedelta
from functools import lru_cache

from carrel.bookings.maintenance import Maintenance
from carrel.ledger.gpu_usage import GpuSample
from carrel.ledger.gpus import memory_text
from carrel.parsing.time import MONTHS

_MODEL = re.compile(r"\b(?:NVIDIA|Tesla|Quadro|GeForce)-[A-Za-z0-9][A-Za-z0-9-]*")
"""Names of models in sentences, as drivers of all ages report them."""
DAYS_OF_MONTH_NAME = 4
"""On the timeline, the name of a month is at most as wide as so many days."""
MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def month(when: date, days: int = 31) -> str:
    """`November 2026`; where there is room for a few days only, `Nov`."""
    is_short = days < DAYS_OF_MONTH_NAME
    return MONTHS[when.month - 1] if is_short else f"{MONTH_NAMES[when.month - 1]} {when.year}"


@lru_cache(maxsize=1_000)
def span(length: timedelta) -> str:
    """The two largest units: `3 d 4 h`, `4 h 20 min`, `20 min`, `under a minute`."""
    minutes = max(int(length.total_seconds()), 0) // 60
    if not minutes:
        return "under a minute"
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")]
    first = next(number for number, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2] if amount)


def sample(latest: GpuSample) -> str:
    """`93 % busy, 40 GiB in use, 285 W, 74 °C`: what the GPU says of these."""
    return ", ".join(
        [
            *([f"{100 * latest.utilisation:.0f} % busy"] if latest.utilisation is not None else []),
            *([f"{memory_text(latest.used)} in use"] if latest.used is not None else []),
            *([f"{latest.power_watts:.0f} W"] if latest.power_watts is not None else []),
            *([f"{latest.temperature_celsius} °C"] if latest.temperature_celsius is not None else []),
        ]
    )


def in_words(sentence: str) -> str:
    """A sentence with the names of models as pages show them."""
    return _MODEL.sub(lambda found: model(found[0]), sentence)


def amount(number: float) -> str:
    """`0.4`, `12`, `1,280`: small numbers have one decimal."""
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"


def count(number: float, thing: str) -> str:
    """`1 GPU`, `3 GPUs`, `0.9 GPUs`."""
    return f"{number:,.10g} {thing}{'' if number == 1 else 's'}"


@lru_cache(maxsize=1_000)
def model(name: str) -> str:
    """`NVIDIA-RTX-A6000` is shown as `RTX A6000`. Bookings and requests use the full name."""
    return re.sub(r"^nvidia[- ]", "", name, flags=re.IGNORECASE).replace("-", " ")


def closed(window: Maintenance) -> str:
    """What a maintenance closes: `gpu-1, gpu-2/3`, or `2 × RTX A6000`."""
    return ", ".join(window.places) or f"{window.gpus} × {model(window.model)}"


def short_name(email: str) -> str:
    """The part of an e-mail address that fits on a bar."""
    return email.partition("@")[0]
