"""`carrel booking` sends notifications by itself."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

from tests.kit.booking_service import BookingProcess, booking_process
from tests.kit.eventually import eventually
from tests.kit.sinks import MailSink


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
    token = service.token("ada@lab.example")
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    body = json.dumps({"model": "a6000", "days": 2}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{service.url}/api/v1/bookings", body, headers), timeout=60)
