"""Whatever an opportunistic pod takes, every booked pod that waits and had room still has room."""

from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.ledger.filtering import NodeFilter
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, candidates, place
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.requests import Request
from tests.kit.gpus import a_node, held, holder, memory, whole

NODES = ("n1", "n2", "n3")

requests = st.one_of(st.integers(1, 2).map(whole), st.sampled_from([4000, 9000, 16000]).map(memory))
tenants = st.lists(st.tuples(st.sampled_from(NODES), st.integers(0, 1), st.integers(1, 16276)), max_size=4)
booked_pods = st.lists(st.tuples(requests, st.sampled_from([NODES, NODES[:1], NODES[1:]])), max_size=4)
kept_cards = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(NODES), st.integers(0, 1)), max_size=2)


@settings(max_examples=300, deadline=None)
@given(tenants, booked_pods, kept_cards, requests)
def test_what_is_given_to_others_is_missed_by_no_booked_pod(
    there: list[tuple[str, int, int]],
    wanted: list[tuple[Request, tuple[str, ...]]],
    kept: list[tuple[int, str, int]],
    request: Request,
) -> None:
    ledger = Ledger([a_node(name) for name in NODES])
    for number, (node, index, mib) in enumerate(there):
        ledger.restore([held(f"tenant-{number}", node, index, mib)])
    booked = [WaitingPod(holder(f"booked-{n}"), each, nodes) for n, (each, nodes) in enumerate(wanted)]
    for number, node, index in kept:
        if number < len(booked):
            ledger.set_card(f"GPU-{node}-{index}", ledger.cards(node)[index].shares.values(), booked[number].holder)
    rooms = dict(ledger.rooms)
    precedence = Precedence(ledger, lambda: booked)

    found = precedence.narrow(NodeFilter(ledger).filter(request, NODES), request)

    assert {*found.fitting, *found.why_not()} == set(NODES)
    taken_away = [name for name, why in found.why_not().items() if why == WAITED_FOR]
    assert sorted([*found.fitting, *taken_away]) == sorted(candidates(ledger, request, NODES).fitting)
    spoken_for = precedence._taken_first()
    for node in found.fitting:
        with precedence.served():
            placement = place(ledger, request, node)
        assert isinstance(placement, Placement)
        with ledger.what_if():
            for share in (*placement.shares(holder("opportunist")), *spoken_for):
                ledger.hold(share)  # raises if there is no room
    assert dict(ledger.rooms) == rooms, "nothing has changed"
    ledger.audit()
