"""How the pages say times, spans, memory and models. One way each, so that a reader learns it once.

`Tue 24 Nov 14:00`, `3 d 4 h`, `8,138 MiB`, `RTX A6000`. The exact words are in the tables and on hover.
"""

import re
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache

from markupsafe import Markup

from carrel.bookings.rules import moment

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def day(when: date) -> str:
    """`Tue 24 Nov`. By hand, because `strftime` pads the day and asks the locale."""
    return f"{WEEKDAYS[when.weekday()]} {when.day} {MONTHS[when.month - 1]}"


def at(instant: datetime, zone: tzinfo) -> str:
    """`Tue 24 Nov 14:00`."""
    local = instant.astimezone(zone)
    return f"{day(local)} {local:%H:%M}"


@lru_cache(maxsize=10_000)
def time_tag(instant: datetime, zone: tzinfo) -> Markup:
    """The short words, with the exact ones for machines and on hover. A long table has thousands of them."""
    exact = f'datetime="{instant.isoformat(timespec="seconds")}" title="{moment(instant, zone)}"'
    return Markup(f"<time {exact}>{at(instant, zone)}</time>")  # noqa: S704 # made of numbers and our own words


@lru_cache(maxsize=1_000)
def span(length: timedelta) -> str:
    """The two largest units: `3 d 4 h`, `4 h 20 min`, `20 min`, `under a minute`."""
    minutes = max(int(length.total_seconds()), 0) // 60
    if not minutes:
        return "under a minute"
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")]
    first = next(number for number, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount} {unit}" for amount, unit in parts[first : first + 2] if amount)


def memory(mib: int) -> str:
    return f"{mib:,} MiB"


def amount(number: float) -> str:
    """`0.4`, `12`, `1,280`: of little, the tenths count."""
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"


def count(number: int, thing: str) -> str:
    """`1 card`, `3 cards`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


@lru_cache(maxsize=1_000)
def model(name: str) -> str:
    """`NVIDIA-RTX-A6000` is `RTX A6000` to people; the full name is what is booked and sent."""
    return re.sub(r"^nvidia[- ]", "", name, flags=re.IGNORECASE).replace("-", " ")


def who(email: str) -> str:
    """What of an address fits on a bar."""
    return email.partition("@")[0]
