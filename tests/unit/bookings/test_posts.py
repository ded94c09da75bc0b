"""The exact JSON that each chat gets."""

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from carrel.bookings.notifications import posts
from carrel.bookings.notifications.messages import Message, Notification, Occasion, message_of

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
LINES = [
    "Your booking of A6000 was cancelled.",
    " ",
    "Done by eva@lab.example: <!channel> *rack* & [roll](https://evil.example)",
    " ",
    "When you may book again:  carrel free",
    " ",
    "https://gpus.lab.example",
]
TEXT = "\n".join(line.strip() for line in LINES) + "\n"


def cancelled() -> Message:
    facts = {"model": "A6000", "actor": "eva@lab.example", "why": "<!channel> *rack* & [roll](https://evil.example)"}
    notification = Notification("log-7", Occasion.CANCELLED, "ada@lab.example", NOON, "b1", facts)
    return message_of(notification, ZoneInfo("Europe/Stockholm"), "https://gpus.lab.example")


def test_slack_gets_plain_text_in_which_nothing_is_a_mention_or_a_link() -> None:
    request = posts.slack(cancelled(), "https://hooks.slack.com/services/T/B/X")

    assert (request.method, request.url) == ("POST", "https://hooks.slack.com/services/T/B/X")
    assert request.headers == {"content-type": "application/json"}
    assert json.loads(request.body) == {
        "text": TEXT.replace("& [", "&amp; [").replace("<!channel>", "&lt;!channel&gt;"),
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def test_a_workflow_of_teams_gets_an_adaptive_card_with_a_block_for_each_line() -> None:
    request = posts.teams(cancelled(), "https://prod-1.westeurope.logic.azure.com/workflows/1?sig=2")

    assert json.loads(request.body) == {
        "type": "message",
        "summary": "Your booking of A6000 was cancelled",
        "attachments": [
            {
                "contentType": "application/vnd.microsoft.card.adaptive",
                "contentUrl": None,
                "content": {
                    "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                    "type": "AdaptiveCard",
                    "version": "1.2",
                    "body": [
                        {"type": "RichTextBlock", "spacing": "None", "inlines": [{"type": "TextRun", "text": line}]}
                        for line in LINES
                    ],
                },
            }
        ],
    }


def test_matrix_gets_text_in_the_room_and_the_id_as_transaction() -> None:
    request = posts.matrix(cancelled(), "https://matrix.lab.example/_matrix/client/v3/rooms/%21a", "secret")

    assert request.method == "PUT"
    assert request.url == "https://matrix.lab.example/_matrix/client/v3/rooms/%21a/send/m.room.message/log-7"
    assert request.headers["authorization"] == "Bearer secret"
    assert json.loads(request.body) == {"msgtype": "m.text", "body": TEXT}


def test_a_webhook_gets_the_facts_beside_the_text() -> None:
    request = posts.webhook(cancelled(), "https://chat.lab.example/hooks/1")

    assert request.headers["carrel-notification-id"] == "log-7"
    assert json.loads(request.body) == {
        "id": "log-7",
        "occasion": "cancelled",
        "person": "ada@lab.example",
        "booking": "b1",
        "at": "2026-11-16T12:00:00+00:00",
        "facts": {
            "model": "A6000",
            "actor": "eva@lab.example",
            "why": "<!channel> *rack* & [roll](https://evil.example)",
        },
        "subject": "Your booking of A6000 was cancelled",
        "text": TEXT,
        "buttons": [],
    }


def test_a_request_does_not_show_the_address_or_a_token() -> None:
    request = posts.matrix(cancelled(), "https://matrix.lab.example/rooms/%21room", "a secret")
    assert "secret" not in repr(request) and "room" not in repr(request)
