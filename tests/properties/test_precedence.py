"""Whatever an opportunistic pod takes, every booked pod that waits and had room still has room.

What booked pods take is compared with the plain version: one after the other, tried out in the ledger itself.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.ids import BookingId, GpuUuid, NodeName
from carrel.ledger.filtering import FilterResult, NodeFilter
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, candidates, place
from carrel.ledger.precedence import SOME_INSTANT, STEPS_BY_GPU, WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import GpuSelector, Request
from carrel.ledger.shares import Coverage, Share
from tests.kit.gpus import N1, N2, N3, a_node, held, holder, memory, whole

NODES = (N1, N2, N3)

requests = st.one_of(st.integers(1, 2).map(whole), st.sampled_from([4000, 9000, 16000]).map(memory))
uuids = st.frozensets(st.sampled_from([f"GPU-{node}-{index}" for node in NODES for index in (0, 1)]), max_size=3)
selectors = st.one_of(
    st.just(GpuSelector()),
    st.builds(GpuSelector, only=uuids),
    st.builds(GpuSelector, not_on=uuids),
)
narrowed_requests = st.builds(lambda request, selector: replace(request, selector=selector), requests, selectors)
tenants = st.lists(st.tuples(st.sampled_from(NODES), st.integers(0, 1), st.integers(1, 16276)), max_size=4)
booked_pods = st.lists(st.tuples(narrowed_requests, st.sampled_from([NODES, NODES[:1], NODES[1:]])), max_size=6)
kept_gpus = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(NODES), st.integers(0, 1)), max_size=2)


def a_busy_ledger(
    there: list[tuple[str, int, int]], kept: list[tuple[int, str, int]], booked: list[WaitingPod]
) -> Ledger:
    ledger = Ledger([a_node(name) for name in NODES])
    for number, (node, index, mib) in enumerate(there):
        ledger.restore([held(f"tenant-{number}", node, index, mib)])
    for number, node, index in kept:
        if number < len(booked):
            ledger.set_entry(
                GpuUuid(f"GPU-{node}-{index}"),
                ledger.entries(NodeName(node))[index].shares.values(),
                booked[number].holder,
            )
    return ledger


def waiting_pods(wanted: list[tuple[Request, tuple[NodeName, ...]]]) -> list[WaitingPod]:
    return [
        WaitingPod(holder(f"booked-{n}"), each, nodes, BookingId(f"booking-{n}"))
        for n, (each, nodes) in enumerate(wanted)
    ]


def plainly_taken(ledger: Ledger, booked: list[WaitingPod]) -> list[Share]:
    shares: list[Share] = []
    with ledger.what_if():
        for each in booked:
            keeper = each.keeper(ledger)
            kept = {entry.gpu.node for entry in map(ledger.entry, ledger.kept_for(keeper)) if entry is not None}
            found = [name for name in each.nodes if isinstance(place(ledger, each.request, name, keeper), Placement)]
            node = min(kept.intersection(found), default="") or min(found, default="")
            placement = place(ledger, each.request, NodeName(node), keeper)
            if isinstance(placement, Placement):
                coverage = Coverage(each.booking, SOME_INSTANT)
                for share in replace(placement, coverage=coverage).shares(each.holder):
                    ledger.hold(share)
                    shares.append(share)
    return shares


def plainly_narrowed(ledger: Ledger, taken: list[Share], found: FilterResult, request: Request) -> set[str]:
    with ledger.what_if():
        for share in taken:
            ledger.hold(share)
        return {name for name in found.fitting if not isinstance(place(ledger, request, name), Refusal)}


def in_any_order(shares: list[Share]) -> list[Share]:
    return sorted(shares, key=lambda share: (share.holder.uid, share.gpu))


@settings(max_examples=200, deadline=None)
@given(tenants, booked_pods, kept_gpus, narrowed_requests)
def test_what_booked_pods_take_is_what_they_would_take_one_after_the_other(
    there: list[tuple[str, int, int]],
    wanted: list[tuple[Request, tuple[NodeName, ...]]],
    kept: list[tuple[int, str, int]],
    request: Request,
) -> None:
    booked = waiting_pods(wanted)
    ledger = a_busy_ledger(there, kept, booked)
    precedence = Precedence(ledger, lambda: booked)
    for again in range(2):
        taken = plainly_taken(ledger, booked)
        found = NodeFilter(ledger).filter(request, NODES)

        assert in_any_order([*precedence.taken_first().shares_on()]) == in_any_order(taken)
        assert {*precedence.narrow(found, request).fitting} == plainly_narrowed(ledger, taken, found, request)
        for node in NODES:
            with precedence.served():
                everywhere = place(ledger, request, NodeName(node))
            with precedence.served(NodeName(node)):
                assert place(ledger, request, NodeName(node)) == everywhere
        if not again:  # what was found before must not be remembered
            ledger.set_entry(GpuUuid("GPU-n1-0"), [])
    ledger.audit()


@settings(max_examples=100, deadline=None)
@given(tenants, booked_pods, kept_gpus, requests, st.integers(0, 30 * STEPS_BY_GPU))
def test_where_the_search_ends_early_the_oldest_pods_still_come_first_and_nothing_is_taken_twice(
    there: list[tuple[str, int, int]],
    wanted: list[tuple[Request, tuple[NodeName, ...]]],
    kept: list[tuple[int, str, int]],
    request: Request,
    most_steps: int,
) -> None:
    booked = waiting_pods(wanted)
    ledger = a_busy_ledger(there, kept, booked)
    precedence = Precedence(ledger, lambda: booked, most_steps)

    taken = [*precedence.taken_first().shares_on()]

    served = {share.holder.uid for share in taken}
    plain = plainly_taken(ledger, booked)
    in_turn = list(dict.fromkeys(share.holder.uid for share in plain))
    assert served == {*in_turn[: len(served)]}
    assert in_any_order(taken) == in_any_order([share for share in plain if share.holder.uid in served])
    found = NodeFilter(ledger).filter(request, NODES)
    assert plainly_narrowed(ledger, plain, found, request) <= {*precedence.narrow(found, request).fitting}


@settings(max_examples=150, deadline=None)
@given(tenants, booked_pods, kept_gpus, requests)
def test_what_is_given_to_others_is_missed_by_no_booked_pod(
    there: list[tuple[str, int, int]],
    wanted: list[tuple[Request, tuple[NodeName, ...]]],
    kept: list[tuple[int, str, int]],
    request: Request,
) -> None:
    booked = [replace(each, booking=BookingId("")) for each in waiting_pods(wanted)]
    ledger = a_busy_ledger(there, kept, booked)
    rooms = dict(ledger.rooms)
    precedence = Precedence(ledger, lambda: booked)

    found = precedence.narrow(NodeFilter(ledger).filter(request, NODES), request)

    assert {*found.fitting, *found.refused} == set(NODES)
    taken_away = [name for name, why in found.refused.items() if why == WAITED_FOR]
    assert sorted([*found.fitting, *taken_away]) == sorted(candidates(ledger, request, NODES).fitting)
    spoken_for = precedence.taken_first().shares_on()
    for node in found.fitting:
        with precedence.served():
            placement = place(ledger, request, node)
        assert isinstance(placement, Placement)
        with ledger.what_if():
            for share in (*placement.shares(holder("opportunist")), *spoken_for):
                ledger.hold(share)  # raises if there is no room
    assert dict(ledger.rooms) == rooms, "nothing has changed"
    ledger.audit()
