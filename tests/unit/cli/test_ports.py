"""Components that run on one machine do not take each other's port."""

import dataclasses
from pathlib import Path

import pytest

from carrel.admission.entry_point import WebhookSettings
from carrel.bookings.entry_point import BookingSettings
from carrel.lifecycle.entry_point import ControllerSettings
from carrel.node.entry_point import AgentSettings
from carrel.scheduling.entry_point import ExtenderSettings

COMPONENTS = {
    "extender": ExtenderSettings,
    "controller": ControllerSettings,
    "booking": BookingSettings,
    "agent": AgentSettings,
    "webhook": WebhookSettings,
}
DOCS = Path(__file__).parents[3] / "docs" / "cli.md"


def port_of(settings: type) -> int:
    (port,) = (field.default for field in dataclasses.fields(settings) if field.name == "port")
    assert isinstance(port, int)
    return port


def test_each_component_has_its_own_default_port() -> None:
    ports = [port_of(settings) for settings in COMPONENTS.values()]

    assert len(set(ports)) == len(ports)
    assert 0 not in ports


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_default_port_is_documented(name: str) -> None:
    assert f"| `carrel {name}` | {port_of(COMPONENTS[name])} |" in DOCS.read_text()
