"""The object of a booking says exactly what was booked, and is there exactly while it should be."""

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from carrel.bookings.mirror import MirrorTerms, may_delete_unknown, wanted_object
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.dialects.booking_objects import BookingMetadata, BookingObject, read_entitlement, says_the_same
from carrel.ids import BookingId

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TEN_MINUTES = timedelta(minutes=10)
INSTANTS = st.integers(-100_000, 100_000).map(lambda seconds: NOON + timedelta(seconds=seconds))


@st.composite
def stored_bookings(draw: st.DrawFn) -> BookingRecord:
    booking = Booking(
        id=BookingId(draw(st.from_regex(r"[a-f0-9]{32}", fullmatch=True))),
        user=draw(st.sampled_from(["ada@lab.org", "bob@lab.org"])),
        model=draw(st.sampled_from(["NVIDIA-RTX-A6000", "NVIDIA-A100-SXM4-80GB"])),
        start=draw(INSTANTS),
        end=draw(INSTANTS),
        gpus=draw(st.integers(1, 64)),
        cancelled_at=draw(st.none() | INSTANTS),
        share=draw(st.booleans()),
    )
    namespace = draw(st.sampled_from(["", "lab", "My_Project"]))
    return BookingRecord(booking, NOON, booking.user, draw(st.integers(1, 99)), namespace)


def as_read(body: object) -> BookingObject:
    return msgspec.convert(body, BookingObject)


@given(stored_bookings(), INSTANTS, st.integers(2, 16))
def test_who_reads_the_object_knows_what_was_booked(stored: BookingRecord, now: datetime, shares: int) -> None:
    booking, body = stored.booking, wanted_object(stored, MirrorTerms(now, shares))
    is_due = booking.cancelled_at is None and booking.start < booking.end and now < booking.end + TEN_MINUTES
    assert (body is not None) is is_due
    if body is None:
        return
    seen = as_read(body)
    read = read_entitlement(seen)
    assert says_the_same(seen, body)
    assert (read.booking, read.people, read.model) == (booking.id, frozenset({booking.user}), booking.model)
    assert (read.gpus, read.start, read.ends) == (booking.gpus, booking.start, booking.end)
    assert read.share_of == (shares if booking.share else 1)
    assert read.namespace in ("", "lab", "my-project")
    assert seen.spec.version == stored.version
    assert booking.is_active(now) == read.runs_at(now)


@given(stored_bookings(), stored_bookings())
def test_another_booking_or_version_is_noticed(one: BookingRecord, other: BookingRecord) -> None:
    bodies = [wanted_object(each, MirrorTerms(NOON)) for each in (one, other)]
    if bodies[0] is not None and bodies[1] is not None and one.booking.id == other.booking.id:
        assert says_the_same(as_read(bodies[0]), bodies[1]) == (bodies[0] == bodies[1])


def test_only_what_an_enquiry_wrote_may_be_unknown() -> None:
    assert may_delete_unknown(BookingObject())
    assert may_delete_unknown(BookingObject(BookingMetadata(labels={"carrel.dev/source": "me"})))
    assert not may_delete_unknown(BookingObject(BookingMetadata(labels={"carrel.dev/source": "enquiry"})))
