"""PURE: what each chat is sent for a message, a function for each: message → request.

The words of the others' interfaces, each once. The text is plain everywhere: what a name or a reason contains is no
formatting, no link and no mention there.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from carrel.bookings.notifications.messages import Message

ADAPTIVE = "application/vnd.microsoft.card.adaptive"
DIGEST, TEST = "digest", "test"
"""The occasions of messages that tell several notifications, or none."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    url: str = field(repr=False)
    """Often as good as a password: never in a log."""
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "POST"


def slack(message: Message, address: str) -> ChatRequest:
    """Slack's incoming webhook. It reads three characters as formatting; links are not opened for a preview."""
    text = message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _json(address, {"text": text, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False})


def teams(message: Message, address: str) -> ChatRequest:
    """A workflow of Teams. Text runs are no Markdown; each line is a block, or it flows."""
    lines = [line or " " for line in message.text.rstrip().splitlines()]
    content: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [
            {"type": "RichTextBlock", "spacing": "None", "inlines": [{"type": "TextRun", "text": line}]}
            for line in lines
        ],
    }
    if message.links:
        content["actions"] = [
            {"type": "Action.OpenUrl", "title": each.title, "url": each.url} for each in message.links
        ]
    attachment = {"contentType": ADAPTIVE, "contentUrl": None, "content": content}
    return _json(address, {"type": "message", "summary": message.subject, "attachments": [attachment]})


def webhook(message: Message, address: str) -> ChatRequest:
    """Whatever else the person uses. Its `text` is what Mattermost and Rocket.Chat show, too."""
    return _json(address, _facts(message), {"carrel-notification-id": message.id})


def signed_webhook(message: Message, url: str, secret: str, timestamp: int) -> ChatRequest:
    """`carrel-signature: sha256=HEX` is the HMAC-SHA256, under the shared secret, of the time, a full stop, and the
    body. A receiver that refuses old times cannot be fooled by a recorded post."""
    plain = webhook(message, url)
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + plain.body, hashlib.sha256).hexdigest()
    signed = {"carrel-timestamp": str(timestamp), "carrel-signature": f"sha256={digest}"}
    return ChatRequest(url, plain.body, {**plain.headers, **signed})


def matrix(message: Message, room_url: str, token: str) -> ChatRequest:
    """The id, of letters that an address may have, is the transaction's: what is sent again is shown once."""
    url = f"{room_url}/send/m.room.message/{message.id}"
    return _json(url, {"msgtype": "m.text", "body": message.text}, _bearer(token), "PUT")


def matrix_join(room_url: str, token: str) -> ChatRequest:
    """Accepts the invitation to a room."""
    return _json(f"{room_url}/join", {}, _bearer(token))


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _json(url: str, content: Any, headers: Mapping[str, str] | None = None, method: str = "POST") -> ChatRequest:
    body = json.dumps(content, ensure_ascii=False).encode()
    return ChatRequest(url, body, {"content-type": "application/json", **(headers or {})}, method)


def _facts(message: Message) -> dict[str, Any]:
    only = message.notifications[0] if len(message.notifications) == 1 else None
    return {
        "id": message.id,
        "occasion": only.occasion.value if only else DIGEST if message.notifications else TEST,
        "person": message.person,
        "booking": only.booking if only else "",
        "at": message.at.isoformat(),
        "facts": dict(only.facts) if only else {},
        "subject": message.subject,
        "text": message.text,
        "buttons": [{"title": each.title, "url": each.url} for each in message.links],
    }
