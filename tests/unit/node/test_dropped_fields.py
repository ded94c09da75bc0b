"""Which fields of a report the API server did not store."""

from typing import Any

import pytest

from carrel.node.report import dropped_fields

SENT = {"total": 2, "devices": [{"id": 0, "uuid": "GPU-a"}, {"id": 1, "uuid": "GPU-b"}], "heartbeat": "…"}


@pytest.mark.parametrize(
    ("stored", "dropped"),
    [
        pytest.param(SENT, (), id="everything is stored"),
        pytest.param({**SENT, "mode": "native"}, (), id="more is stored"),
        pytest.param({"total": 2, "devices": SENT["devices"]}, ("status.heartbeat",), id="a field of the status"),
        pytest.param(
            {**SENT, "devices": [{"id": 0}, {"id": 1}]}, ("status.devices[].uuid",), id="of every device: once"
        ),
        pytest.param({}, ("status.total", "status.devices", "status.heartbeat"), id="nothing is stored"),
    ],
)
def test_fields_that_are_not_stored_are_named(stored: dict[str, Any], dropped: tuple[str, ...]) -> None:
    assert dropped_fields(SENT, stored) == dropped
