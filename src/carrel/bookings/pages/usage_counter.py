"""What was held, hour by hour: how much of each card, and how many card hours by whom.

The ledger knows only what is held now, so somebody has to look now and then. What is counted is kept in memory, for a
fortnight: it begins anew with the process, and each replica has its own.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from carrel.bookings.pages.heat_map import Warmth
from carrel.ledger.ledger import Ledger

HOUR = timedelta(hours=1)
KEPT = timedelta(days=14)
OFTEN_ENOUGH = timedelta(seconds=30)
LONGEST_LOOK = timedelta(minutes=5)
"""Between two looks nothing is known: a longer time is not counted, such as the sleep of a machine."""


@dataclass(slots=True)
class _Hour:
    """Sums, in hours: a card of which half was held all the time counts 0.5."""

    looked: float = 0.0
    by_card: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_user: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Tally:
    def __init__(self) -> None:
        self._hours: dict[datetime, _Hour] = {}
        self._last: datetime | None = None

    @property
    def since(self) -> datetime | None:
        """The first hour that is known."""
        return min(self._hours, default=None)

    def look(self, ledger: Ledger, user_of: Callable[[str], str], now: datetime) -> None:
        """To be called every few seconds: what is held now is taken to have been held since the last look.

        `user_of` says whose a pod is, by its uid.
        """
        last = self._last
        if last is not None and timedelta(0) <= now - last < OFTEN_ENOUGH:
            return
        self._last = now
        if last is None or not timedelta(0) < now - last <= LONGEST_LOOK:
            return
        part = (now - last) / HOUR
        hour = self._hour_of(now)
        hour.looked += part
        for name in ledger.nodes:
            for card in ledger.cards(name):
                for uid, share in card.shares.items():
                    held = part * card.held(share) / card.gpu.memory
                    hour.by_card[card.gpu.uuid] += held
                    hour.by_user[user_of(uid)] += held

    def _hour_of(self, now: datetime) -> _Hour:
        start = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if start not in self._hours:
            self._hours = {when: hour for when, hour in self._hours.items() if when > start - KEPT}
            self._hours[start] = _Hour()
        return self._hours[start]

    def by_card(self, cards: Mapping[str, str], start: datetime, hours: int) -> Sequence[Warmth]:
        """Of each card (uuid → what it is called) the part of its memory that was held, from that hour on."""
        wanted = [self._hours.get(start + number * HOUR) for number in range(hours)]
        return [
            Warmth(name, [min(hour.by_card.get(uuid, 0.0) / hour.looked, 1.0) if hour else 0.0 for hour in wanted])
            for uuid, name in cards.items()
        ]

    def by_user(self, start: datetime) -> Mapping[str, float]:
        """Card hours from that hour on, the most first. The empty name stands for pods that say nobody's."""
        sums: defaultdict[str, float] = defaultdict(float)
        for when, hour in self._hours.items():
            if when >= start:
                for user, held in hour.by_user.items():
                    sums[user] += held
        return dict(sorted(sums.items(), key=lambda each: (-each[1], each[0])))
