"""Makes notifications from the log and from bookings that end soon, and sends what is due.

Any number of replicas may do this: a notification is kept once and given to one sender at a time. If a sender dies
after sending, the notification is sent again, with the same id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial

from carrel.bookings.notifications.buttons import OF_OCCASION, PATH, TITLES, Button, buttons_of, is_told_of
from carrel.bookings.notifications.channels import Channels, Undelivered
from carrel.bookings.notifications.choices import LAB, Recipient
from carrel.bookings.notifications.messages import (
    NO_LINKS,
    REMINDERS,
    Link,
    Message,
    Notification,
    Occasion,
    digest_of,
    message_of,
)
from carrel.bookings.notifications.quiet_hours import held_until, reminder, still_to_tell
from carrel.bookings.records import LogEntry
from carrel.bookings.sign_in.secrets import hashed, new_secret
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.outbox import Delivery, Planned, SqlOutbox

log = logging.getLogger(__name__)

SENDING = timedelta(minutes=5)
"""The time for one attempt; after it another replica may try."""
AT_ONCE = 20
ANY_OTHER = ""
"""Channels that are not set up here."""
ROUND_S = 5.0
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=2)
KEPT = timedelta(days=30)


class Notifier:
    def __init__(
        self, outbox: SqlOutbox, store: SqlBookings, channels: Channels, clock: Callable[[], datetime]
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._channels = channels
        self._clock = clock

    async def run(self) -> None:
        """Runs until it is cancelled. A failure is logged and tried again; it never stops the service. Each channel has
        a task of its own: one that is slow delays no other."""
        sending: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await _attempt(self._prepare)
                for name in (*self._channels.names, ANY_OTHER):
                    if name not in sending or sending[name].done():
                        sending[name] = group.create_task(_attempt(partial(self._send_all, name)))
                await asyncio.sleep(ROUND_S)

    async def round(self) -> int:
        """Returns how many messages were delivered. Raises `StoreUnavailable`; nothing is lost then."""
        await self._prepare()
        return sum(await asyncio.gather(*(self._send(name) for name in (*self._channels.names, ANY_OTHER))))

    async def _prepare(self) -> None:
        # The log is read even without a channel, so that a new channel does not send notifications about the past.
        await self._outbox.collect(notification_of, self._plan)
        if self._channels.names:
            await self._remind()

    async def _send_all(self, channel: str) -> None:
        while await self._send(channel):
            pass

    async def _send(self, channel: str) -> int:
        """Send some of what is due by this channel; by `ANY_OTHER`, what is left of channels that are not set up."""
        now, known = self._clock(), self._channels.names
        which = known if channel == ANY_OTHER else (channel,)
        taken = await self._outbox.take(now, now + SENDING, AT_ONCE, which, others=channel == ANY_OTHER)
        return sum(await asyncio.gather(*(self._deliver(delivery) for delivery in taken)))

    async def forget(self) -> None:
        await self._outbox.forget(self._clock() - KEPT)
        await self._outbox.buttons.forget(self._clock() - KEPT)

    async def _remind(self) -> None:
        now = self._clock()
        async with self._store.reading() as reading:
            near = await reading.within(now, now + max(REMINDERS.values()))
        recipients = await self._outbox.recipients({record.booking.user for record in near})
        planned = list[Planned]()
        for record in near:
            recipient = recipients[record.booking.user]
            if (due := reminder(record.booking, now, self._zone_of(recipient))) is not None:
                planned += self._plan(due, recipient)
        if planned:
            await self._outbox.add(planned)

    def _plan(self, notification: Notification, recipient: Recipient) -> Sequence[Planned]:
        channels = recipient.channels_for(notification.occasion, self._channels.names)
        morning = held_until(notification, self._zone_of(recipient))
        return [Planned(notification, name, notification.at, None if name == LAB else morning) for name in channels]

    def _zone_of(self, recipient: Recipient) -> tzinfo:
        return recipient.zone or self._channels.zone

    async def _deliver(self, delivery: Delivery) -> bool:
        delivery = await self._without_useless(delivery)
        if not delivery.notifications:
            return False
        channel, is_lab = self._channels.get(delivery.channel), delivery.channel == LAB
        if channel is None:
            # Another replica has this channel: its settings are newer than ours, or older.
            await self._outbox.failed(delivery, f"{delivery.channel} is not set up here", self._next_try(delivery))
            return False
        address = delivery.recipient.address(delivery.channel)
        if not (address or is_lab):
            await self._outbox.failed(delivery, "the person does not use this channel any more", None)
            return False
        try:
            async with asyncio.timeout(SENDING.total_seconds() / 2):
                await channel.send(self._message(delivery, await self._links(delivery)), address)
        except Exception as error:  # whatever one notification leads to, the others are sent
            why = str(error) or "it took too long"
            again = None if isinstance(error, Undelivered) and error.is_final else self._next_try(delivery)
            log.warning(
                "notification_failed id=%s channel=%s tries=%d final=%s: %s",
                delivery.notifications[0].id, delivery.channel, delivery.tries, again is None, why,
                exc_info=not isinstance(error, Undelivered | TimeoutError),
            )  # fmt: skip
            await self._outbox.failed(delivery, why, again)
            return False
        await self._outbox.delivered(delivery, self._clock())
        return True

    async def _without_useless(self, delivery: Delivery) -> Delivery:
        """What is too late is given up, and what was over before the morning counts as told."""
        now = self._clock()
        in_time = [each for each in delivery.notifications if now < each.useless_after]
        told = still_to_tell(in_time) if delivery.held_until else in_time
        told = [each for each in told if each.occasion not in REMINDERS or await self._version(each)]
        if late := [each for each in delivery.notifications if each not in in_time]:
            await self._outbox.failed(delivery.only(late), "it is of no use any more", None)
        if over := [each for each in in_time if each not in told]:
            await self._outbox.delivered(delivery.only(over), now)
        return delivery.only(told)

    async def _version(self, reminder: Notification) -> int:
        """Return its booking's; 0: the booking has ended, or its end was moved."""
        async with self._store.reading() as reading:
            record = await reading.get(reminder.booking)
        return record.version if record and is_told_of(reminder, record.booking) else 0

    async def _links(self, delivery: Delivery) -> Mapping[str, Sequence[Link]]:
        """The buttons of each notification. The lab's webhook has many readers, and gets none."""
        if delivery.channel == LAB or not self._channels.link:
            return NO_LINKS
        links, made = dict[str, list[Link]](), dict[str, Button]()
        for notification in delivery.notifications:
            version = await self._version(notification) if notification.occasion in OF_OCCASION else 0
            for button in buttons_of(notification, version, self._clock()) if version else ():
                secret = new_secret()
                made[hashed(secret)] = button
                url = f"{self._channels.link}{PATH}{secret}"
                links.setdefault(notification.id, []).append(Link(TITLES[button.act], url))
        if made:
            await self._outbox.buttons.add(made)
        return links

    def _message(self, delivery: Delivery, links: Mapping[str, Sequence[Link]]) -> Message:
        # A room of a chat has many readers: they are told in the lab's zone.
        zone = self._channels.zone if delivery.channel == LAB else self._zone_of(delivery.recipient)
        if delivery.held_until is not None and len(delivery.notifications) > 1:
            return digest_of(delivery.notifications, delivery.held_until, zone, self._channels.link, links)
        return message_of(delivery.notifications[0], zone, self._channels.link, links)

    def _next_try(self, delivery: Delivery) -> datetime | None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(delivery.tries - 1, 10))
        again = self._clock() + pause
        return again if again < delivery.useless_after else None


async def _attempt(act: Callable[[], Awaitable[None]]) -> None:
    try:
        await act()
    except Exception as error:
        log.warning("notifications_failed: %s: %s", type(error).__name__, error)


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
