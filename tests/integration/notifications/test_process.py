"""`carrel booking` sends notifications by itself."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

from tests.kit.booking_service import BookingProcess, booking_process
from tests.kit.eventually import eventually
from tests.kit.sinks import MailSink, PostSink


async def test_a_booking_in_the_running_service_is_notified_by_mail(tmp_path: Path) -> None:
    async with MailSink().listening() as mail:
        sender = "notifications: {mailFrom: carrel@lab.example}"
        process = booking_process(tmp_path, more=sender, CARREL_SMTP_URL=mail.url)
        service = await asyncio.to_thread(process.__enter__)
        try:
            await asyncio.to_thread(_book, service)
            await eventually(lambda: mail.messages, "a mail")
        finally:
            await asyncio.to_thread(process.__exit__, None, None, None)

    (message,) = mail.messages
    assert message["To"] == "ada@lab.example"
    assert re.fullmatch(r"<log-1-[0-9]{8}T[0-9]{6}Z@carrel>", message["Message-ID"])


def _book(service: BookingProcess) -> None:
    _call(service, "POST", "/api/v1/bookings", {"model": "a6000", "days": 2})


def _call(service: BookingProcess, method: str, path: str, content: object) -> None:
    token = service.token("ada@lab.example")
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = urllib.request.Request(f"{service.url}{path}", json.dumps(content).encode(), headers, method=method)
    urllib.request.urlopen(request, timeout=60)


async def test_a_person_chooses_a_chat_in_the_running_service_and_is_told_there(tmp_path: Path) -> None:
    async with PostSink().listening() as chat:
        process = booking_process(tmp_path, more=f"notifications: {{allowedHosts: ['{chat.host}']}}")
        service = await asyncio.to_thread(process.__enter__)
        try:
            chosen = {"addresses": {"slack": chat.url}}
            await asyncio.to_thread(_call, service, "PATCH", "/api/v1/me/messages", chosen)
            await asyncio.to_thread(_call, service, "POST", "/api/v1/me/messages/test", {"channel": "slack"})
            await asyncio.to_thread(_book, service)
            await eventually(lambda: len(chat.posts) == 2, "a test and a message")
        finally:
            await asyncio.to_thread(process.__exit__, None, None, None)

    texts = [json.loads(body)["text"] for _, body in chat.posts]
    assert texts[0].startswith("A test message from Carrel") and texts[1].startswith("Booked: NVIDIA-RTX-A6000")
