"""The choices and the words of the spawn page."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from carrel.jupyterhub.profiles import (
    Profile,
    carrel_profiles,
    next_free_words,
    notices_html,
    profiles_for,
)
from carrel.jupyterhub.startable import FreeModel, StartableAnswer, StartableBooking, read_startable

FRIDAY = datetime(2026, 11, 20, 17, 0, tzinfo=UTC)
MONDAY = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
Answered = partial(StartableAnswer, zone="Europe/Stockholm")


def a_booking(**more: Any) -> StartableBooking:
    known: dict[str, Any] = {"model": "NVIDIA-A100", "gpus": 1, "used": 0, "start": MONDAY, "end": FRIDAY, "runs": True}
    return StartableBooking(**{**known, **more})


def titles(startable: StartableAnswer | None) -> list[str]:
    return [each["display_name"] for each in profiles_for(startable)]


A6000 = FreeModel("NVIDIA-RTX-A6000", 3)


@pytest.mark.parametrize(
    ("waits", "said"),
    [(False, "waits a moment, and then runs on CPU"), (True, "waits until one is")],
    ids=["where a full cluster means CPU", "where it means waiting"],
)
def test_the_page_promises_what_the_cluster_does_when_it_is_full(waits: bool, said: str) -> None:
    startable = Answered((), (FreeModel("NVIDIA-A100", 0),), waits_when_full=waits)

    (any_gpu,) = (each for each in profiles_for(startable) if each["slug"] == "gpu-any")

    assert f"If none is free, your notebook {said}." in any_gpu["description"]


@pytest.mark.parametrize(
    ("startable", "shown"),
    [
        pytest.param(
            Answered((a_booking(),), (A6000,)),
            ["Your booking: 1 A100 until Fri 20 Nov 18:00 CET", "Free now: 3 RTX A6000 (may be taken back)", "No GPU"],
            id="a booking, and free GPUs",
        ),
        pytest.param(
            Answered((a_booking(gpus=4, used=1, group="vision"),), ()),
            [
                "Booking of vision: 3 A100 until Fri 20 Nov 18:00 CET",
                "Booking of vision: 1 A100 until Fri 20 Nov 18:00 CET",
                "A GPU if one is free",
                "No GPU",
            ],
            id="what is left of a group's booking: all of it, or one GPU",
        ),
        pytest.param(Answered((a_booking(used=1),), ()), ["A GPU if one is free", "No GPU"], id="a booking in use"),
        pytest.param(Answered((a_booking(runs=False),), ()), ["A GPU if one is free", "No GPU"], id="a later booking"),
        pytest.param(
            Answered((a_booking(),), (FreeModel("NVIDIA-A100", 2),)),
            ["Your booking: 1 A100 until Fri 20 Nov 18:00 CET", "No GPU"],
            id="one choice for the model that is booked",
        ),
        pytest.param(None, ["A GPU if one is free", "No GPU"], id="the booking service is away"),
    ],
)
def test_the_page_shows(startable: StartableAnswer | None, shown: list[str]) -> None:
    assert titles(startable) == shown


def test_the_booking_is_chosen_beforehand_and_otherwise_no_gpu() -> None:
    def chosen(startable: StartableAnswer | None) -> list[str]:
        return [each["slug"] for each in profiles_for(startable) if each.get("default")]

    assert chosen(Answered((a_booking(),), (A6000,))) == ["gpu-nvidia-a100-1"]
    assert chosen(Answered((), (A6000,))) == ["no-gpu"]
    assert chosen(None) == ["no-gpu"]


def test_no_gpu_says_so_where_the_hub_gives_everybody_one() -> None:
    override = profiles_for(None)[-1]["kubespawner_override"]

    assert override["extra_resource_limits"] == {"nvidia.com/gpu": "0"}
    assert override["extra_annotations"] == {"carrel.dev/gpu-model": None}


def test_a_choice_asks_for_the_model() -> None:
    override = profiles_for(Answered((a_booking(gpus=2),), ()))[0]["kubespawner_override"]

    assert override["extra_resource_limits"] == {"nvidia.com/gpu": "2"}
    assert override["extra_annotations"] == {"carrel.dev/gpu-model": "NVIDIA-A100"}


class ASpawner:
    """What a profile list reads of a spawner."""

    def __init__(self, startable: StartableAnswer | None, profile: str, pending: str | None) -> None:
        self.pending, self.user_options = pending, {"profile": profile}
        self._startable = startable

    async def startable(self) -> StartableAnswer | None:
        return self._startable


async def choices(startable: StartableAnswer | None, profile: str, pending: str | None) -> dict[str, Profile]:
    return {each["slug"]: each for each in await carrel_profiles()(ASpawner(startable, profile, pending))}


@pytest.mark.parametrize(
    ("chosen", "startable", "asked"),
    [
        pytest.param("gpu-nvidia-a100-2", None, ("1", None), id="the service is away: any GPU"),
        pytest.param("gpu-nvidia-a100-1", Answered((), ()), ("1", None), id="the booking of last month: any GPU"),
        pytest.param(
            "gpu-nvidia-rtx-a6000-1",
            Answered((), free=(FreeModel("NVIDIA-RTX-A6000", 0),)),
            ("1", "NVIDIA-RTX-A6000"),
            id="the last free GPU was taken meanwhile: the same model",
        ),
        pytest.param("gpu-any", Answered((), free=(A6000,)), ("1", None), id="a GPU of any model"),
    ],
)
async def test_a_choice_that_is_not_shown_any_more_still_starts(
    chosen: str, startable: StartableAnswer | None, asked: tuple[str, str | None]
) -> None:
    profile = (await choices(startable, chosen, "spawn"))[chosen]
    override = profile["kubespawner_override"]

    limit, model = (
        override["extra_resource_limits"]["nvidia.com/gpu"],
        override["extra_annotations"]["carrel.dev/gpu-model"],
    )
    assert (limit, model) == asked
    if chosen != "gpu-any":
        assert chosen not in await choices(startable, chosen, None), "and the page does not show it"


async def test_a_choice_that_never_was_is_refused_by_kubespawner() -> None:
    assert "all-gpus" not in await choices(Answered((), ()), "all-gpus", "spawn")


def test_what_others_wrote_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    startable = Answered((a_booking(group=evil),), (FreeModel(evil, 1),), 'javascript:alert("1")', (evil,))

    page = notices_html(startable) + "".join(
        each["display_name"] + each["description"] + each["slug"] for each in profiles_for(startable)
    )

    assert "<script" not in page
    assert "javascript:" not in page


def test_notices_stand_above_the_choices() -> None:
    startable = Answered((a_booking(runs=False),), (), "https://gpus.lab.example/book", ("Your booking ends today.",))

    page = notices_html(startable)

    assert "Your booking ends today." in page
    assert "Your booking of 1 A100 starts Mon 16 Nov 09:00 CET." in page
    assert 'href="https://gpus.lab.example/book"' in page
    assert "does not answer" in notices_html(None)


def test_people_who_wait_are_told_when_a_gpu_is_free() -> None:
    startable = Answered((), free=(A6000, FreeModel("NVIDIA-A100", 0, FRIDAY), FreeModel("T4", 0)))

    assert next_free_words(startable) == ["1 A100 will be free Fri 20 Nov 18:00 CET"]


@pytest.mark.parametrize(
    ("zone", "written"),
    [("America/New_York", "Fri 20 Nov 12:00 EST"), ("UTC", "Fri 20 Nov 17:00 UTC"), ("Nowhere/City", "17:00 UTC")],
    ids=["the person's", "none was chosen", "the hub's image does not know it"],
)
def test_times_are_in_the_zone_that_the_booking_service_says(zone: str, written: str) -> None:
    (title, *_) = titles(StartableAnswer((a_booking(),), (), zone=zone))

    assert title.endswith(written)


def test_the_answer_of_the_booking_service_is_read() -> None:
    booking = {"id": "1", "model": "NVIDIA-A100", "gpus": 1, "used": 0, "group": "", "runs": True}
    times = {"start": "2026-11-16T08:00:00Z", "end": "2026-11-20T17:00:00Z"}
    answer = {
        "user": "ada@lab.example",
        "matches": True,
        "bookings": [{**booking, **times}],
        "free": [{"model": "NVIDIA-RTX-A6000", "gpus": 3, "next_free": None}],
        "book_url": "https://gpus.lab.example/book",
        "notices": ["one"],
        "zone": "Europe/Stockholm",
    }

    found = Answered((a_booking(),), (A6000,), "https://gpus.lab.example/book", ("one",))
    assert read_startable(answer) == found


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"bookings": []}, {"bookings": [{}], "free": []}, {"bookings": [], "free": [{"model": "A"}]}],
)
def test_an_answer_that_cannot_be_read_is_a_value_error(answer: Any) -> None:
    with pytest.raises(ValueError):
        read_startable(answer)
