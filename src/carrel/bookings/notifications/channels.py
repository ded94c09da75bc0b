"""The channels: mail (SMTP) with the booking as a calendar entry, and HTTP posts that the receiver can check.

The Message-ID of a mail follows from the notification's id: one that is sent twice is the same message. Passwords and
mails are sent over TLS only, unless the server is on this machine or the address says `smtp+plain`.

`Carrel-Signature: sha256=HEX` of a post is the HMAC-SHA256, under the shared secret, of the time in `Carrel-Timestamp`,
a full stop, and the body. A receiver that refuses old times cannot be fooled by a recorded post.
`Carrel-Notification-Id` is the id by which a repetition is recognised.
"""

import asyncio
import hashlib
import hmac
import json
import smtplib
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.parse import unquote, urlsplit

import aiohttp

from carrel.bookings.icalendar import booking_event, calendar
from carrel.bookings.notifications.messages import Notification, Occasion, Undelivered, subject, text
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
    """Implements `bookings.notifications.messages.Channel`."""

    server: MailServer
    sender: str
    zone: tzinfo
    """The lab's, for people who chose no other."""
    link: str = ""
    """To the service, at the end of each mail."""

    async def send(self, notification: Notification) -> None:
        try:
            message = self.message(notification)
        except (ValueError, MessageError) as error:
            raise Undelivered(f"it cannot be written as a mail: {error}", is_final=True) from None
        # smtplib blocks, so it runs in a thread; its time-outs end it.
        await asyncio.to_thread(self._send, message)

    def message(self, notification: Notification) -> EmailMessage:
        """Raises `ValueError` if a part of it would forge a header."""
        message = EmailMessage()
        message["From"] = self.sender
        message["To"] = _recipient(notification.person)
        zone = notification.zone or self.zone
        message["Subject"] = _header(subject(notification, zone))
        message["Date"] = format_datetime(notification.at)
        message["Message-ID"] = f"<{notification.id}@carrel>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text(notification, zone, self.link))
        if notification.occasion in ABOUT_BOOKINGS and notification.span is not None:
            entry = calendar([_event(notification, notification.span, zone)], method="PUBLISH")
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


TIMEOUT = aiohttp.ClientTimeout(total=20)
GONE = 410


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """Implements `bookings.notifications.messages.Channel`."""

    url: str
    secret: str = field(repr=False)
    http: aiohttp.ClientSession
    zone: tzinfo
    """The lab's: a room of a chat has many readers."""
    now: Callable[[], datetime]

    async def send(self, notification: Notification) -> None:
        content = {
            "id": notification.id,
            "occasion": notification.occasion.value,
            "person": notification.person,
            "booking": notification.booking,
            "at": notification.at.isoformat(),
            "facts": dict(notification.facts),
            "subject": subject(notification, self.zone),
            "text": text(notification, self.zone),
        }
        body = json.dumps(content, ensure_ascii=False).encode()
        timestamp = str(int(self.now().timestamp()))
        headers = {
            "content-type": "application/json",
            "carrel-notification-id": notification.id,
            "carrel-timestamp": timestamp,
            "carrel-signature": signature(self.secret, timestamp, body),
        }
        try:
            # Redirects are not followed: the signature is for the configured address.
            post = self.http.post(self.url, data=body, headers=headers, timeout=TIMEOUT, allow_redirects=False)
            async with post as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Undelivered(f"{type(error).__name__}: {error}") from None
        if not 200 <= status < 300:
            raise Undelivered(f"answered {status}", is_final=status == GONE)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
