"""Makes notifications from the log and from bookings that end soon, and sends what is due.

Any number of replicas may do this: a notification is kept once and given to one sender at a time. If a sender dies
after sending, the notification is sent again, with the same id.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from carrel.bookings.notifications.messages import (
    REMINDERS,
    Channel,
    Delivery,
    Notification,
    Occasion,
    Undelivered,
    reminder,
)
from carrel.bookings.records import LogEntry
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.outbox import SqlOutbox

log = logging.getLogger(__name__)

SENDING = timedelta(minutes=5)
"""The time for one attempt; after it another replica may try."""
AT_ONCE = 20
ROUND_S = 5.0
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=2)
KEPT = timedelta(days=30)


class Notifier:
    def __init__(
        self, outbox: SqlOutbox, store: SqlBookings, channels: Mapping[str, Channel], clock: Callable[[], datetime]
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._channels = channels
        self._clock = clock

    def take_channels(self, channels: Mapping[str, Channel]) -> None:
        self._channels = channels

    async def run(self) -> None:
        """Runs until it is cancelled. A failure is logged and tried again; it never stops the service."""
        while True:
            try:
                while await self.round():
                    pass
            except Exception as error:
                log.warning("notifications_failed: %s: %s", type(error).__name__, error)
            await asyncio.sleep(ROUND_S)

    async def round(self) -> int:
        """Returns how many notifications were delivered. Raises `StoreUnavailable`; nothing is lost then."""
        # The log is read even without a channel, so that a new channel does not send notifications about the past.
        await self._outbox.collect(notification_of, tuple(self._channels))
        if not self._channels:
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
        notifications = [notification for record in near if (notification := reminder(record.booking, now)) is not None]
        if notifications:
            await self._outbox.add(notifications, tuple(self._channels), now)

    async def _deliver(self, delivery: Delivery) -> bool:
        notification, channel = delivery.notification, self._channels.get(delivery.channel)
        if self._clock() >= notification.useless_after:
            await self._outbox.failed(delivery, "it is of no use any more", None)
            return False
        if channel is None:
            # Another replica has this channel: its settings are newer than ours, or older.
            await self._outbox.failed(delivery, f"{delivery.channel} is not set up here", self._next_try(delivery))
            return False
        try:
            async with asyncio.timeout(SENDING.total_seconds() / 2):
                await channel.send(notification)
        except Exception as error:  # whatever one notification leads to, the others are sent
            again = None if isinstance(error, Undelivered) and error.is_final else self._next_try(delivery)
            log.warning(
                "notification_failed id=%s channel=%s tries=%d final=%s: %s",
                notification.id, delivery.channel, delivery.tries, again is None, str(error) or "it took too long",
                exc_info=not isinstance(error, Undelivered | TimeoutError),
            )  # fmt: skip
            await self._outbox.failed(delivery, str(error), again)
            return False
        await self._outbox.delivered(delivery, self._clock())
        return True

    def _next_try(self, delivery: Delivery) -> datetime | None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(delivery.tries - 1, 10))
        again = self._clock() + pause
        return again if again < delivery.notification.useless_after else None


OCCASIONS = {occasion.value: occasion for occasion in Occasion if occasion not in REMINDERS}


def notification_of(entry: LogEntry) -> Notification | None:
    """The notification for the person whom a log entry concerns, if there is one."""
    occasion = OCCASIONS.get(entry.action)
    if occasion is None or not entry.subject:
        return None
    facts = {**entry.details, "actor": entry.actor, "why": entry.why}
    # A new database counts from one again: with the time, its ids differ from those of the old one.
    id = f"log-{entry.number}-{entry.at.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    return Notification(id, occasion, entry.subject, entry.at, entry.booking, facts)
