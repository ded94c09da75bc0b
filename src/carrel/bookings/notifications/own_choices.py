"""What a person may choose about messages: checks it, keeps it, and sends a test."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from carrel.bookings.notifications.channels import Channels, Undelivered
from carrel.bookings.notifications.choices import LAB, MAIL, TOPICS, MessageChoices, Recipient
from carrel.bookings.notifications.messages import trial
from carrel.bookings.people import KnownPerson, Person
from carrel.bookings.sign_in.secrets import new_secret
from carrel.bookings.store.people import SqlPeople

TITLES = {"mail": "mail", "slack": "Slack", "teams": "Teams", "matrix": "Matrix", "webhook": "a webhook"}


@dataclass(frozen=True, slots=True)
class ChoicesChange:
    """What a person wants otherwise. None, and a channel that is not named: as it was."""

    by_mail: bool | None = None
    addresses: Mapping[str, str] | None = None
    """Channel → the new address; empty: not by this channel any more."""
    muted: frozenset[str] | None = None

    def applied_to(self, old: MessageChoices) -> MessageChoices:
        addresses = {name: given for name, given in {**old.addresses, **(self.addresses or {})}.items() if given}
        by_mail = old.by_mail if self.by_mail is None else self.by_mail
        return MessageChoices(by_mail, addresses, old.muted if self.muted is None else self.muted)


@dataclass(frozen=True, slots=True)
class OwnChoices:
    channels: Channels
    people: SqlPeople

    @property
    def available(self) -> tuple[str, ...]:
        """The channels that a person may choose."""
        return tuple(name for name in self.channels.names if name != LAB)

    async def change(self, change: ChoicesChange, person: Person) -> list[str]:
        """Everything that is wrong with it; then nothing has changed."""
        known = await self.people.person(person.email)
        problems = list(self._problems(change))
        if not problems:
            await self.people.choose_messages(person.email, change.applied_to(known.messages))
        return problems

    def _problems(self, change: ChoicesChange) -> list[str]:
        unknown = sorted((change.muted or frozenset()) - TOPICS.keys())
        found = [f"“{each}” is no occasion; there are {', '.join(TOPICS)}" for each in unknown]
        for name, address in (change.addresses or {}).items():
            if address and (name == MAIL or name not in self.available):
                found.append(f"This lab sends nothing to “{name}” that people choose.")
            elif address and (why := self.channels.why_not(name, address)):
                found.append(f"{TITLES[name]}: {why}.")
        return found

    async def test(self, channel: str, person: Person, now: datetime) -> str:
        """Send a test message now; why it did not arrive, or nothing."""
        recipient = recipient_of(await self.people.person(person.email))
        sender, address = self.channels.get(channel), recipient.address(channel)
        if channel == LAB or sender is None or not address:
            return "You have not chosen this channel."
        zone = recipient.zone or self.channels.zone
        try:
            await sender.send(trial(person.email, f"test-{new_secret()}", now, zone, self.channels.link), address)
        except Undelivered as undelivered:
            return str(undelivered)
        return ""


def recipient_of(known: KnownPerson) -> Recipient:
    return Recipient(known.email, known.zone, known.messages)
