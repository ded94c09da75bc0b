"""Who has to go when a server has too many connections."""

from dataclasses import dataclass

from carrel.http.open_connections import PROBE_CONNECTIONS, OpenConnections, Room, Waits


@dataclass(eq=False)
class Caller:
    peer: str = "10.0.0.1"
    waits: Waits = Waits.FOR_A_REQUEST
    is_open: bool = True

    def abort(self) -> None:
        self.is_open = False


def opened(limit: int, *callers: Caller) -> OpenConnections:
    connections = OpenConnections(limit)
    for each in callers:
        assert connections.add(each) is Room.FOR_ALL
    return connections


def test_below_the_limit_nobody_goes() -> None:
    callers = [Caller(), Caller()]
    opened(2, *callers)
    assert all(each.is_open for each in callers)


def test_of_one_address_the_oldest_that_has_sent_no_request_goes() -> None:
    idle, oldest, newer = Caller(waits=Waits.IDLE), Caller(), Caller()
    connections = opened(3, idle, oldest, newer)

    assert connections.add(Caller()) is Room.FOR_ALL
    assert [each.is_open for each in (idle, oldest, newer)] == [True, False, True]


def test_a_flood_displaces_itself_and_not_the_others() -> None:
    probe, scheduler = Caller("10.0.0.9"), Caller("10.0.0.2", Waits.IDLE)
    flood = [Caller("10.6.6.6") for _ in range(1000)]
    connections = opened(10, probe, scheduler)
    for each in flood:
        assert connections.add(each) is Room.FOR_ALL

    assert probe.is_open and scheduler.is_open
    assert [each.is_open for each in flood] == [False] * 992 + [True] * 8


def test_an_address_with_many_requests_that_are_being_answered_is_not_the_one_that_floods() -> None:
    busy = [Caller("10.0.0.2", Waits.FOR_US) for _ in range(5)]
    kept_open, flood = Caller("10.0.0.2", Waits.IDLE), [Caller("10.6.6.6"), Caller("10.6.6.6")]
    connections = opened(8, *busy, kept_open, *flood)

    connections.add(Caller("10.0.0.3"))
    assert kept_open.is_open and not flood[0].is_open


def test_whoever_is_being_answered_stays_and_probes_still_come_in() -> None:
    busy = [Caller(waits=Waits.FOR_US) for _ in range(4)]
    connections = opened(4, *busy)

    more = [Caller(waits=Waits.FOR_US) for _ in range(PROBE_CONNECTIONS)]
    assert all(connections.add(each) is Room.FOR_PROBES for each in more)
    assert connections.add(Caller()) is Room.NONE
    assert all(each.is_open for each in busy)

    connections.discard(busy[0])
    assert connections.add(Caller()) is Room.FOR_PROBES
