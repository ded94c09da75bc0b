"""MAIA's words: bookings, the summary, the pod terminator."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from carrel.dialects import maia
from carrel.dialects.maia import Enquiry, PodToEnd, Summary, Tenancy, Verdict, Wish
from carrel.dialects.tier import Revocable
from carrel.parsing import Malformed

END = datetime(2025, 6, 15, tzinfo=UTC)
ASKING = {"user_email": "alice@kth.se", "namespace": "alice-lab", "token": "secret"}


def test_an_enquiry_is_read_and_written_word_for_word() -> None:
    enquiry = Enquiry("alice@kth.se", "alice-lab", "secret")
    assert maia.read_enquiry(ASKING) == enquiry
    assert maia.write_enquiry(enquiry) == ASKING


def test_an_enquiry_never_shows_its_token() -> None:
    assert "secret" not in repr(maia.read_enquiry(ASKING))


def test_a_wish_is_meant_in_the_labs_zone() -> None:
    booking = {"gpu": "NVIDIA-RTX-A6000", "starting_time": "2025-06-01 00:00:00", "ending_time": "2025-06-15 00:00:00"}
    stockholm = ZoneInfo("Europe/Stockholm")
    enquiry = maia.read_enquiry({**ASKING, "booking": booking}, stockholm)
    assert enquiry.wish == Wish(
        "NVIDIA-RTX-A6000", datetime(2025, 5, 31, 22, tzinfo=UTC), datetime(2025, 6, 14, 22, tzinfo=UTC)
    )
    assert maia.write_enquiry(enquiry, stockholm) == {**ASKING, "booking": booking}


def test_an_hour_that_clocks_skip_is_no_time_and_of_one_that_comes_twice_the_first_is_meant() -> None:
    stockholm = ZoneInfo("Europe/Stockholm")
    twice = {"gpu": "T4", "starting_time": "2026-10-25 02:30:00", "ending_time": "2026-10-26 02:30:00"}
    skipped = {"gpu": "T4", "starting_time": "2026-03-29 02:30:00", "ending_time": "2026-03-30 02:30:00"}

    wish = maia.read_enquiry({**ASKING, "booking": twice}, stockholm).wish
    assert wish is not None
    assert wish.start == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    with pytest.raises(Malformed, match="starting_time"):
        maia.read_enquiry({**ASKING, "booking": skipped}, stockholm)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param({"user_email": ""}, "user_email is ''", id="nobody asks"),
        pytest.param({"user_email": 1}, "user_email is 1; expected text", id="a number asks"),
        pytest.param({"booking": []}, "booking is", id="a booking that is a list"),
        pytest.param({"booking": {}}, r"booking\.gpu is None", id="no model"),
        pytest.param({"booking": {"gpu": "T4"}}, r"booking\.starting_time is None", id="no start"),
        pytest.param(
            {"booking": {"gpu": "T4", "starting_time": "2025-02-30 00:00:00"}}, "starting_time is", id="30 February"
        ),
        pytest.param(
            {"booking": {"gpu": "T4", "starting_time": "2025-6-1 8:0:0"}}, "starting_time is", id="short digits"
        ),
        pytest.param(
            {"booking": {"gpu": "T4", "starting_time": "2025-06-01T00:00:00Z"}}, "2025-06-01 08:00:00", id="RFC 3339"
        ),
    ],
)
def test_a_malformed_enquiry_is_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Malformed, match=f"booking enquiry: .*{complaint}"):
        maia.read_enquiry({**ASKING, **change})


def test_a_verdict_is_read_and_written_word_for_word() -> None:
    yes = {"schedulable": True, "until": "2025-06-15T00:00:00Z", "gpu": "NVIDIA-RTX-A6000"}
    assert maia.read_verdict(yes) == Verdict(True, END, "NVIDIA-RTX-A6000")
    assert maia.write_verdict(Verdict(True, END, "NVIDIA-RTX-A6000")) == yes
    assert maia.write_verdict(Verdict(False)) == {"schedulable": False, "until": None}
    assert maia.read_verdict({"schedulable": True, "until": "2025-06-15T02:00:00+02:00"}).until == END
    capitalised = {"Schedulable": True, "Until": "2025-06-15T00:00:00Z", "GPU": "NVIDIA-RTX-A6000"}
    assert maia.read_verdict(capitalised) == Verdict(True, END, "NVIDIA-RTX-A6000"), "as the manual writes it"


@pytest.mark.parametrize("until", ["2025-06-15T00:00:00", "2025-06-15 00:00:00", "2025-06-15T00:00:00.000000"])
def test_the_end_of_a_booking_without_an_offset_is_in_utc(until: str) -> None:
    assert maia.read_verdict({"schedulable": True, "until": until}).until == END


@pytest.mark.parametrize("body", [{}, {"schedulable": "yes"}, {"schedulable": True, "until": "soon"}, [], "no"])
def test_a_malformed_verdict_is_named(body: Any) -> None:
    with pytest.raises(Malformed, match="booking verdict"):
        maia.read_verdict(body)


def test_the_answers_to_a_wish() -> None:
    assert maia.booked() == {"message": "Booking created successfully"}
    assert maia.not_booked(["at least one day", "one planned at a time"]) == {
        "error": "at least one day\none planned at a time"
    }


def test_namespaces_are_compared_as_maia_does() -> None:
    assert maia.same_namespace("Alice_Lab", "alice-lab")
    assert maia.same_namespace("alice-lab", "Alice_Lab")
    assert not maia.same_namespace("alice-lab", "bob-lab")


def test_the_summary_is_read_and_written() -> None:
    tenancy = Tenancy(
        "alice@kth.se", "n1", "maia", "alice-lab", "1", "NVIDIA-RTX-A6000", "49140", expiration=Revocable.ANY_TIME
    )
    written = maia.write_summary(Summary({"NVIDIA-RTX-A6000": 3}, [tenancy]))
    assert written == {
        "gpu": {"NVIDIA-RTX-A6000": 3},
        "gpu_allocations": {
            "alice@kth.se, alice-lab": {
                "node": "n1",
                "cluster": "maia",
                "namespace": "alice-lab",
                "gpu": "1",
                "gpu_name": "NVIDIA-RTX-A6000",
                "gpu_size": "49140",
                "expiration": "1900-01-01T08:00:00Z",
                "is_expired": False,
            }
        },
    }


def test_the_terminator_speaks_as_its_callers_expect() -> None:
    assert maia.read_pod_to_end({"pod_name": "train", "namespace": "lab"}) == PodToEnd("lab", "train")
    assert maia.ended("train") == {"status": "success", "deleted_pod": "train"}
    assert maia.expired(["a", "b"]) == {"status": "success", "expired_pods": ["a", "b"]}
    assert maia.expired([]) == maia.nothing_expired() == {"status": "no expired pods found"}
    assert maia.not_ended("no such pod") == {"status": "error", "message": "no such pod"}


@pytest.mark.parametrize("body", [None, {}, {"pod_name": "train"}, {"pod_name": ["train"], "namespace": "lab"}])
def test_a_malformed_order_to_end_a_pod_is_named(body: Any) -> None:
    with pytest.raises(Malformed, match="request to end a pod"):
        maia.read_pod_to_end(body)
