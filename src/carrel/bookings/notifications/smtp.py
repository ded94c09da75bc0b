"""Letters by mail (SMTP), with the booking as a calendar entry.

The Message-ID follows from the letter's id: a letter that is sent twice is the same message. Passwords and letters
travel over TLS only, unless the server is on this machine or the address says `smtp+plain`.
"""

import asyncio
import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import tzinfo
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.parse import unquote, urlsplit

from carrel.bookings.icalendar import CalendarEvent, calendar
from carrel.bookings.notifications.interface import Undelivered
from carrel.bookings.notifications.messages import Notification, Occasion, subject, text
from carrel.parsing import Malformed

TIMEOUT_S = 20.0
PORTS = {"smtps": 465, "smtp": 587, "smtp+plain": 25}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ABOUT_BOOKINGS = (Occasion.BOOKED, Occasion.CHANGED, Occasion.CANCELLED)


@dataclass(frozen=True, slots=True)
class MailServer:
    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)


def mail_server(url: str) -> MailServer:
    """`smtps://` speaks TLS at once, `smtp://` after STARTTLS, `smtp+plain://` not at all. Raises `Malformed`."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in PORTS or not parts.hostname or port == -1:
        raise Malformed("the address of the mail server", "its form", "(hidden)", "smtp[s]://USER:PASSWORD@HOST:PORT")
    scheme = "smtp+plain" if parts.scheme == "smtp" and parts.hostname in LOOPBACK else parts.scheme
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return MailServer(scheme, parts.hostname, port or PORTS[parts.scheme], user, password)


@dataclass(frozen=True, slots=True)
class MailChannel:
    """Implements `bookings.notifications.interface.Channel`."""

    server: MailServer
    sender: str
    zone: tzinfo
    link: str = ""
    """Of the service, under each letter."""

    async def send(self, letter: Notification) -> None:
        try:
            message = self.message(letter)
        except (ValueError, MessageError) as error:
            raise Undelivered(f"no mail can be made of it: {error}", is_final=True) from None
        # The library waits in a thread of its own; its time-outs end it.
        await asyncio.to_thread(self._send, message)

    def message(self, letter: Notification) -> EmailMessage:
        """Raises `ValueError` if something in it would forge a header."""
        person = Address(addr_spec=letter.person)
        if "@" not in letter.person or person.addr_spec != letter.person:  # of several in one, it would go to all
            raise ValueError(f"{letter.person!r} is no address")
        message = EmailMessage()
        message["From"] = self.sender
        message["To"] = person
        message["Subject"] = subject(letter, self.zone)
        message["Date"] = format_datetime(letter.at)
        message["Message-ID"] = f"<{letter.id}@carrel>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text(letter, self.zone, self.link))
        event = _event(letter, self.zone)
        if event is not None:
            entry = calendar([event], letter.at, method="PUBLISH")
            message.add_attachment(
                entry.encode(),
                "text",
                "calendar",
                filename="booking.ics",
                params={"method": "PUBLISH", "charset": "utf-8"},
            )
        return message

    def _send(self, message: EmailMessage) -> None:
        try:
            with self._connected() as smtp:
                if self.server.user:
                    smtp.login(self.server.user, self.server.password)
                smtp.send_message(message)
        except smtplib.SMTPRecipientsRefused as refused:
            codes = [code for code, _ in refused.recipients.values()]
            final = bool(codes) and all(500 <= code < 600 for code in codes)
            raise Undelivered(f"the server refused the address: {codes}", is_final=final) from None
        except (OSError, smtplib.SMTPException) as error:
            raise Undelivered(f"{type(error).__name__}: {error}") from None

    def _connected(self) -> smtplib.SMTP:
        server = self.server
        if server.scheme == "smtps":
            return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        smtp = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
        if server.scheme == "smtp":
            smtp.starttls(context=ssl.create_default_context())
        return smtp


def _event(letter: Notification, zone: tzinfo) -> CalendarEvent | None:
    if letter.occasion not in ABOUT_BOOKINGS or letter.span is None:
        return None
    start, end = letter.span
    return CalendarEvent(
        uid=f"{letter.booking}@carrel",
        sequence=letter.sequence,
        start=start,
        end=max(start, end),
        summary=f"GPU: {letter.facts.get('model', '')}",
        description=subject(letter, zone),
        is_cancelled=letter.occasion is Occasion.CANCELLED and end <= start,
    )
