"""Events: named after what they say, so that nothing is written twice."""

from dataclasses import replace

import msgspec
import pytest

from carrel.kubernetes.objects.events import Note, counted_again, event_name
from carrel.kubernetes.objects.kinds import Pod
from tests.kit.lab import NOON
from tests.kit.objects import pod_from

NOTE = Note("WaitingForGPU", "no room", "Warning")


def a_pod(name: str = "train", uid: str = "u1") -> Pod:
    return pod_from({"metadata": {"name": name, "uid": uid}, "spec": {}})


def test_the_same_message_about_the_same_object_is_the_same_event() -> None:
    assert event_name(a_pod(), NOTE) == event_name(a_pod(), Note("WaitingForGPU", "no room"))


@pytest.mark.parametrize(
    ("pod", "note"),
    [
        pytest.param(a_pod(uid="u2"), NOTE, id="a successor of the same name"),
        pytest.param(a_pod(), replace(NOTE, message="no node"), id="another message"),
        pytest.param(a_pod(), replace(NOTE, reason="GPUAssigned"), id="another reason"),
    ],
)
def test_anything_else_is_another_event(pod: Pod, note: Note) -> None:
    assert event_name(pod, note) != event_name(a_pod(), NOTE)


@pytest.mark.parametrize("name", ["a" * 253, "a" * 235 + ".b", "a" * 235 + "-b"], ids=["longest", "dot", "dash"])
def test_the_name_of_an_event_is_valid_for_every_name_of_a_pod(name: str) -> None:
    named = event_name(a_pod(name), NOTE)
    assert len(named) <= 253
    assert "-." not in named
    assert ".." not in named


def test_a_message_that_is_too_long_is_cut() -> None:
    assert len(Note("R", "x" * 2000).text) == 1024
    assert Note("R", "x" * 1024).text == "x" * 1024


def test_an_event_that_is_true_again_is_counted() -> None:
    again = counted_again(msgspec.json.decode('{"count": 2}'), NOON)
    assert again == {"count": 3, "lastTimestamp": "2026-11-16T12:00:00Z"}


def test_the_text_of_others_cannot_rewrite_what_a_terminal_shows() -> None:
    assert Note("GPURevoked", "pod \x1b[2J\nforged").text == "pod \\x1b[2J\\nforged"
