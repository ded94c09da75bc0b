"""What MAIA's programs do: book and ask in MAIA's JSON, and call the pod terminator. Carrel's own programs answer."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.e2e.pods import eventually
from tests.kit.booking_service import BookingProcess, booking_process

TOKEN = "of-the-clients-of-maia"
RULES = "bookings: {rules: {minDuration: 36s, cooldown: 0s, planned: 10, settlingTime: 0s}}"
STARTS_IN = [timedelta(seconds=seconds) for seconds in (2, 5, 20, 60)]
"""MAIA's bookings say when they start, in whole seconds, and that must not have passed. On a busy machine the service
may read it after that; then the next one is tried."""
Json = dict[str, Any]


def post(url: str, body: Json | None = None, token: str = "", method: str = "POST") -> tuple[int, Json]:
    """The status and the answer."""
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class MaiaBookings:
    """Carrel's booking service, which knows nothing of the cluster. Bookings are made as MAIA's clients make them."""

    def __init__(self, service: BookingProcess, model: str) -> None:
        self._service = service
        self._model = model
        self.address = f"{service.url}/maia-api/gpu-schedulability"  # as in many values files: without a slash

    def book(self, user: str) -> None:
        """One GPU for two days. Returns when the booking runs."""
        for starts_in in STARTS_IN:
            start = datetime.now(UTC) + starts_in
            times = {"starting_time": start, "ending_time": start + timedelta(days=2)}
            wish = {"gpu": self._model, **{name: f"{time:%Y-%m-%d %H:%M:%S}" for name, time in times.items()}}
            status, answer = post(self.address, {**self._question(user), "booking": wish})
            if "has passed" not in answer.get("error", ""):
                break
        assert (status, answer) == (200, {"message": "Booking created successfully"}), answer
        eventually(lambda: self.is_schedulable(user), 120)

    def is_schedulable(self, user: str) -> bool:
        status, answer = post(self.address, self._question(user))
        assert status == 200, answer
        return bool(answer["schedulable"])

    def end_at(self, user: str, end: datetime) -> None:
        """The person shortens it, in the pages of the service."""
        token, bookings = self._service.token(user), f"{self._service.url}/api/v1/bookings"
        _, found = post(f"{bookings}?user=me&state=active", token=token, method="GET")
        (booking,) = found["items"]
        body = {"end": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
        status, answer = post(f"{bookings}/{booking['id']}", body, token, method="PATCH")
        assert status == 200, answer

    def _question(self, user: str) -> Json:
        return {"user_email": user, "namespace": "", "token": TOKEN}


@contextmanager
def maia_bookings(folder: Path, model: str, gpus: int) -> Iterator[MaiaBookings]:
    inventory = folder / "inventory.yaml"
    gpu = {"count": gpus, "model": model, "memoryMiB": 16276}
    inventory.write_text(json.dumps({"nodes": [{"name": "somewhere", "gpus": [gpu]}]}))
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    own = ("--inventory", str(inventory), "--config", str(rules))
    with booking_process(folder, *own, CARREL_MAIA_TOKEN=TOKEN) as service:
        yield MaiaBookings(service, model)
