"""Sends messages by mail (SMTP), with bookings as calendar entries.

The Message-ID of a mail follows from the message's id: one that is sent twice is the same message. Passwords and mails
are sent over TLS only, unless the server is on this machine or the address says `smtp+plain`.
"""

import asyncio
import smtplib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.parse import unquote, urlsplit

from carrel.bookings.icalendar import booking_event, calendar
from carrel.bookings.notifications.channels import Undelivered
from carrel.bookings.notifications.messages import Message, Notification, Occasion, subject
from carrel.bookings.rules import Booking
from carrel.ids import BookingId
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address
from carrel.parsing.printable import printable

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
    """`smtps://` uses TLS from the start, `smtp://` after STARTTLS, `smtp+plain://` never. Raises `Malformed`."""
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
    """Implements `bookings.notifications.channels.Channel`."""

    server: MailServer
    sender: str

    async def send(self, message: Message, address: str) -> None:
        try:
            mail = self.mail(message, address)
        except (ValueError, MessageError) as error:
            raise Undelivered(f"it cannot be written as a mail: {error}", is_final=True) from None
        # smtplib blocks, so it runs in a thread; its time-outs end it.
        await asyncio.to_thread(self._send, mail)

    def mail(self, message: Message, address: str) -> EmailMessage:
        """Raises `ValueError` if a part of it would forge a header."""
        mail = EmailMessage()
        mail["From"] = self.sender
        mail["To"] = _recipient(address)
        mail["Subject"] = _header(message.subject)
        mail["Date"] = format_datetime(message.at)
        mail["Message-ID"] = f"<{message.id}@carrel>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text)
        latest = {each.booking: each for each in message.notifications if each.occasion in ABOUT_BOOKINGS}
        events = [_event(each, each.span, message.zone) for each in latest.values() if each.span]
        if events:
            entry = calendar(events, method="PUBLISH")
            mail.add_attachment(
                entry.encode(),
                "text",
                "calendar",
                filename="booking.ics",
                params={"method": "PUBLISH", "charset": "utf-8"},
            )
        return mail

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


def _recipient(email: str) -> Address:
    """An address that hides another one would send the mail there, so it is refused (`ValueError`).

    Python reads only ASCII addresses. The other letters that an address may have are plain ones: with an ASCII letter
    for each, it must read as one address.
    """
    in_ascii = "".join(letter if letter.isascii() else "a" for letter in email)
    if not is_address(email) or "=?" in email or Address(addr_spec=in_ascii).addr_spec != in_ascii:
        raise ValueError(f"{email!r} is not an e-mail address")
    name, _, host = email.partition("@")
    found = Address(addr_spec=email) if email.isascii() else Address(username=name, domain=host)
    if found.addr_spec != email:  # a quoted name would be quoted once more, and so be another one
        raise ValueError(f"{email!r} is not an e-mail address")
    return found


def _header(text: str) -> str:
    """Text that a header shows as it is. What looks like an encoded word would be decoded, and could hold a line break
    that begins a header of its own."""
    return printable(text).replace("=?", "= ?")


def _event(notification: Notification, span: tuple[datetime, datetime], zone: tzinfo) -> Iterable[str]:
    facts = notification.facts
    booking = Booking(
        id=BookingId(notification.booking),
        user=notification.person,
        model=facts.get("model", ""),
        start=span[0],
        end=span[1],
        gpus=int(facts.get("gpus", "1")),
        share=facts.get("share") == "true",
        group=facts.get("group", ""),
    )
    return booking_event(booking, int(facts.get("version", "1")), subject(notification, zone), notification.at)
