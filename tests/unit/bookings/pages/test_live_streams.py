"""Who has to go when there are too many live streams."""

from contextlib import ExitStack

import pytest

from carrel.bookings.pages.map_page import PER_PERSON, LiveStream, LiveStreams
from carrel.http.limits import DEFAULT_LIMITS
from carrel.http.problems import Problem


def displaced(streams: list[LiveStream]) -> list[bool]:
    return [stream.is_displaced for stream in streams]


def test_one_more_than_a_person_may_have_displaces_the_oldest_of_theirs() -> None:
    streams = LiveStreams(most=100)
    with ExitStack() as stack:
        bob = stack.enter_context(streams.opened("bob"))
        ada = [stack.enter_context(streams.opened("ada")) for _ in range(PER_PERSON + 2)]

        assert displaced(ada) == [True, True, *[False] * PER_PERSON]
        assert not bob.is_displaced


def test_one_more_than_all_may_have_displaces_the_oldest_of_who_has_the_most() -> None:
    streams = LiveStreams(most=3)
    with ExitStack() as stack:
        opened = [stack.enter_context(streams.opened(person)) for person in ("bob", "ada", "ada", "cleo")]

        assert displaced(opened) == [False, True, False, False]


def test_a_stream_that_has_ended_counts_no_longer() -> None:
    streams = LiveStreams(most=100)
    with ExitStack() as stack:
        first = stack.enter_context(streams.opened("ada"))
        for _ in range(3 * PER_PERSON):
            with streams.opened("ada"):
                streams.require_room("ada")

        assert not first.is_displaced


def test_displaced_streams_whose_readers_are_slow_count_until_they_have_ended() -> None:
    streams = LiveStreams(most=100)
    with ExitStack() as stack:
        for _ in range(2 * PER_PERSON):
            streams.require_room("ada")
            stack.enter_context(streams.opened("ada"))
        with pytest.raises(Problem, match="Too many live maps are open"):
            streams.require_room("ada")
        streams.require_room("bob")
    streams.require_room("ada")


def test_streams_never_take_more_than_half_of_the_connections() -> None:
    streams, opened = LiveStreams(), 0
    with ExitStack() as stack, pytest.raises(Problem):
        while True:
            streams.require_room(f"{opened}@lab.org")
            stack.enter_context(streams.opened(f"{opened}@lab.org"))
            opened += 1
    assert opened <= DEFAULT_LIMITS.connections / 2
