"""What the person in a pod is told, and the file in which its containers read it."""

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from carrel.dialects.notice import AGAIN_WITHOUT_GPU, booking_notice, revocation_notice, what_follows, with_notice_file

ITEMS = [
    {"path": "notice", "fieldRef": {"fieldPath": "metadata.annotations['carrel.dev/notice']"}},
    {"path": "leave-by", "fieldRef": {"fieldPath": "metadata.annotations['carrel.dev/leave-by']"}},
    {"path": "terminate-at", "fieldRef": {"fieldPath": "metadata.annotations['terminate-at']"}},
]
OURS = {"name": "carrel-notice", "downwardAPI": {"items": ITEMS}}
MOUNT = {"name": "carrel-notice", "mountPath": "/etc/carrel", "readOnly": True}


def spec(*mounts: list[dict[str, Any]], volumes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """One container for each list of mounts."""
    containers = [{"name": f"c{number}", "volumeMounts": each} for number, each in enumerate(mounts)]
    return {"containers": containers, "initContainers": [{"name": "early"}], "volumes": volumes or []}


def test_every_container_can_read_the_notice() -> None:
    home = {"name": "home", "mountPath": "/home/ada"}

    with_file = with_notice_file(spec([home], [], volumes=[{"name": "home"}]))

    assert with_file == spec([home, MOUNT], [MOUNT], volumes=[{"name": "home"}, OURS])
    assert with_notice_file(with_file) == with_file, "a second review changes nothing"


def test_a_container_that_joined_later_can_read_it_too() -> None:
    with_file = with_notice_file(spec([]))
    with_file["containers"].append({"name": "helper"})

    again = with_notice_file(with_file)

    assert [each["volumeMounts"] for each in again["containers"]] == [[MOUNT], [MOUNT]]
    assert again["volumes"] == [OURS]


def test_what_the_api_server_adds_to_our_volume_does_not_make_it_another() -> None:
    with_file = with_notice_file(spec([]))
    defaulted = [{**each, "fieldRef": {"apiVersion": "v1", **each["fieldRef"]}} for each in ITEMS]  # type: ignore[dict-item]
    with_file["volumes"][0] = {"name": "carrel-notice", "downwardAPI": {"defaultMode": 420, "items": defaulted}}

    assert with_notice_file(with_file) == with_file


@pytest.mark.parametrize(
    "path", ["/etc/carrel", "/etc/carrel/", "/etc/carrel/notice", "/etc", "/"], ids=lambda path: f"at {path}"
)
def test_what_a_container_has_at_that_place_is_left_alone(path: str) -> None:
    mine = spec([{"name": "mine", "mountPath": path}], volumes=[{"name": "mine", "emptyDir": {}}])

    assert with_notice_file(mine) == mine


def test_a_volume_of_the_user_with_that_name_is_left_alone() -> None:
    mine = spec([], volumes=[{"name": "carrel-notice", "emptyDir": {}}])

    assert with_notice_file(mine) == mine


@pytest.mark.parametrize("empty", [{}, {"containers": None, "volumes": None}], ids=["absent", "null"])
def test_a_pod_without_containers_is_left_to_the_api_server(empty: dict[str, Any]) -> None:
    assert with_notice_file(empty) == empty


def test_a_pod_is_told_what_happens_to_it() -> None:
    assert what_follows({}, has_controller=False) == "is created again without a GPU"
    assert what_follows({}, has_controller=True) == "is replaced without a GPU"
    assert what_follows({"carrel.dev/no-successor": "true"}, has_controller=False) == "is not created again"


@pytest.mark.parametrize("sentence", [revocation_notice, booking_notice])
def test_a_notice_and_its_countdown_fit_into_a_notification_of_jupyterlab(
    sentence: Callable[[datetime, str, tzinfo], str],
) -> None:
    """JupyterLab cuts at 140 characters, and what to do is at the end."""
    longest = sentence(datetime(2026, 9, 16, 10, 10, tzinfo=UTC), AGAIN_WITHOUT_GPU, ZoneInfo("Europe/Stockholm"))

    assert "CEST" in longest
    assert len(f"59:59\n{longest}") <= 140
