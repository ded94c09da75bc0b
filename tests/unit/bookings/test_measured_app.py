"""Requests to the booking service are counted by method and status; a caller cannot make up new time series."""

import pytest

from carrel.bookings.health import BookingMetrics, MeasuredApp
from carrel.http.asgi import Receive, Scope, Send


@pytest.mark.parametrize(("method", "counted"), [("GET", "GET"), ("BREW", "other"), ("get", "other")])
async def test_a_method_that_is_made_up_is_counted_as_other(method: str, counted: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 405})

    async def nothing(*_: object) -> dict[str, object]:
        return {}

    metrics = BookingMetrics()
    await MeasuredApp(app, metrics)({"type": "http", "method": method}, nothing, nothing)  # type: ignore[arg-type] # enough of each
    assert f'carrel_booking_calls_total{{method="{counted}",status="405"}} 1.0' in metrics.text().decode()
