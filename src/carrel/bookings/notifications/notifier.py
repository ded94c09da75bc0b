"""Tells people about their bookings: makes letters from the log and from ends that come near, and sends what is due.

Any number of replicas may do it: a letter is kept once, and given to one sender at a time. A sender that dies after
sending leaves the letter to be sent again, with the same id.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from carrel.bookings.notifications.interface import Channel, Delivery, Outbox, Undelivered
from carrel.bookings.notifications.messages import REMINDERS, Notification, Occasion, reminder
from carrel.bookings.records import BookingStore, LogEntry

log = logging.getLogger(__name__)

SENDING = timedelta(minutes=5)
"""How long one attempt may take at most; then another replica may try."""
AT_ONCE = 20
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=2)
KEPT = timedelta(days=30)


class Notifier:
    def __init__(
        self, outbox: Outbox, store: BookingStore, ways: Mapping[str, Channel], clock: Callable[[], datetime]
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._ways = ways
        self._clock = clock

    async def round(self) -> int:
        """Says how many letters were delivered. Raises `StoreUnavailable`, and nothing is lost."""
        # The log is read on also if there is no way to tell: who sets one up is not told of the past.
        await self._outbox.collect(notification_of, tuple(self._ways))
        if not self._ways:
            return 0
        await self._remind()
        now = self._clock()
        taken = await self._outbox.take(now, now + SENDING, AT_ONCE)
        return sum(await asyncio.gather(*(self._deliver(delivery) for delivery in taken)))

    async def forget(self) -> None:
        await self._outbox.forget(self._clock() - KEPT)

    async def _remind(self) -> None:
        now = self._clock()
        async with self._store.reading() as reading:
            near = await reading.within(now, now + max(REMINDERS.values()))
        letters = [letter for record in near if (letter := reminder(record.booking, now)) is not None]
        if letters:
            await self._outbox.add(letters, tuple(self._ways), now)

    async def _deliver(self, delivery: Delivery) -> bool:
        letter, way = delivery.letter, self._ways.get(delivery.way)
        if self._clock() >= letter.useless_after:
            await self._outbox.failed(delivery, "it is of no use any more", None)
            return False
        if way is None:
            # Another replica has this way: its settings are newer than ours, or older.
            await self._outbox.failed(delivery, f"{delivery.way} is not set up here", self._next_try(delivery))
            return False
        try:
            async with asyncio.timeout(SENDING.total_seconds() / 2):
                await way.send(letter)
        except (Undelivered, TimeoutError) as error:
            again = None if isinstance(error, Undelivered) and error.is_final else self._next_try(delivery)
            log.warning(
                "letter_failed id=%s way=%s tries=%d final=%s: %s",
                letter.id, delivery.way, delivery.tries, again is None, error or "it took too long",
            )  # fmt: skip
            await self._outbox.failed(delivery, str(error), again)
            return False
        await self._outbox.told(delivery, self._clock())
        return True

    def _next_try(self, delivery: Delivery) -> datetime | None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(delivery.tries - 1, 10))
        again = self._clock() + pause
        return again if again < delivery.letter.useless_after else None


OCCASIONS = {occasion.value: occasion for occasion in Occasion if occasion not in REMINDERS}


def notification_of(entry: LogEntry) -> Notification | None:
    """What the person concerned is told of an entry of the log, if anything."""
    occasion = OCCASIONS.get(entry.action)
    if occasion is None or not entry.subject:
        return None
    facts = {**entry.details, "actor": entry.actor, "why": entry.why}
    # Another database counts from one again; whoever knows a letter by its id must not take the new one for the old.
    id = f"log-{entry.number}-{entry.at.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    return Notification(id, occasion, entry.subject, entry.at, entry.booking, entry.number, facts)
