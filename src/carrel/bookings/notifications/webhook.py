"""Notifications to a program: an HTTP POST whose sender and age can be checked.

`Carrel-Signature: sha256=HEX` is the HMAC-SHA256, under the shared secret, of the time in `Carrel-Timestamp`, a full
stop, and the body. A receiver that refuses old times cannot be fooled by a recorded post. `Carrel-Notification-Id`
is the id by which a repetition is recognised.
"""

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

import aiohttp

from carrel.bookings.notifications.interface import Undelivered
from carrel.bookings.notifications.messages import Notification, subject, text

TIMEOUT = aiohttp.ClientTimeout(total=20)
GONE = 410


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """Implements `bookings.notifications.interface.Channel`."""

    url: str
    secret: str = field(repr=False)
    http: aiohttp.ClientSession
    zone: tzinfo
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
