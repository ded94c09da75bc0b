"""The victims that are chosen are the best set, or have one pod more: every set is tried, on small clusters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from carrel.ids import BookingId, GpuUuid, NodeName, PodUid
from carrel.ledger import victims
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod, able_entries, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import GpuSelector, Portion, Request, Topology, TopologyMode
from carrel.ledger.shares import Holder, ShareState
from carrel.ledger.victims import OpportunisticPod, Revocation
from tests.kit.gpus import A100, A6000, N1, N2, a_gpu, held, holder, memory, whole
from tests.kit.victims import NOON, an_opportunist, revoke

NODES = (N1, N2)
PODS = {"n1": tuple("abcdef"), "n2": tuple("ghij")}
PEOPLE = ("ada", "bob", "eve")
REQUESTS = (
    whole(),
    whole(2),
    whole(3),
    whole(model=A100),
    whole(2, topology=Topology(TopologyMode.REQUIRED)),
    memory(500),
    memory(700, gpus=2),
    memory(300, gpus=3),
    whole(5),
    memory(500, gpus=4),
    Request(1, Portion(Fraction(1, 2)), model=A100),
    memory(600, selector=GpuSelector(only=frozenset({GpuUuid("GPU-n1-0"), GpuUuid("GPU-n2-1")}))),
)
Order = tuple[int, Fraction, int, timedelta]
"""Young pods, what is taken from people at or below the equal share, pods, work."""

gpus = st.tuples(
    st.sampled_from([1000, 1000, 2400]),
    st.sampled_from([A100, A6000]),
    st.sampled_from(["", "x"]),
    st.sampled_from(["", "", "", "unhealthy"]),
)
parts = st.sampled_from([None, 100, 250, 300, 400, 500, 500, 700])
pods = st.tuples(st.sampled_from(PEOPLE), st.booleans(), st.integers(0, 3), st.sampled_from("oooooooobe"))
"""Person, whether it is young, hours of work, and whether it is opportunistic, has a booking, or is ending."""


class Case:
    """A small cluster, and a booked pod that needs GPUs."""

    def __init__(
        self,
        drawn_nodes: Sequence[Sequence[tuple[int, str, str, str]]],
        drawn_shares: Sequence[Sequence[Sequence[tuple[str, int | None]]]],
        drawn_pods: Mapping[str, tuple[str, bool, int, str]],
        request: Request,
        kept: Iterable[tuple[str, int, str]],
    ) -> None:
        self.booked = WaitingPod(holder("booked"), request, NODES, BookingId("booking"))
        self.ledger = Ledger(_node(name, drawn) for name, drawn in zip(NODES, drawn_nodes, strict=True))
        self.opportunistic: dict[str, OpportunisticPod] = {}
        for node, on_node in zip(NODES, drawn_shares, strict=True):
            for entry, wanted in zip(self.ledger.entries(node), on_node, strict=False):
                for name, mib in wanted:
                    if f"uid-{name}" not in entry.shares and entry.free >= (entry.gpu.memory if mib is None else mib):
                        self.ledger.hold(held(name, node, entry.gpu.index, mib))
        for name, (person, is_young, hours, kind) in drawn_pods.items():
            if kind != "b" and self.ledger.shares_of(PodUid(f"uid-{name}")):
                pod = an_opportunist(name, person, hours, is_young=is_young)
                self.opportunistic[pod.uid] = pod
        for name, (*_, kind) in drawn_pods.items():
            if kind == "e":
                self.ledger.release(PodUid(f"uid-{name}"))
        for named, index, uid in kept:
            self.ledger.keep(GpuUuid(f"GPU-{named}-{index}"), Holder(PodUid(uid)))

    def staying(self) -> list[str]:
        """The pods that may be victims: they hold something, and are not ending."""
        return [
            uid
            for uid in self.opportunistic
            if any(share.state is not ShareState.RELEASING for share in self.ledger.shares_of(PodUid(uid)).values())
        ]

    @contextmanager
    def without(self, uids: Iterable[str]) -> Iterator[Ledger]:
        """The cluster when they, and all pods that are ending, are gone."""
        with self.ledger.what_if():
            ending = [
                uid
                for uid in tuple(self.ledger.holders())
                if any(share.state is ShareState.RELEASING for share in self.ledger.shares_of(uid).values())
            ]
            for uid in (*uids, *ending):
                self.ledger.give_back(PodUid(uid))
            yield self.ledger

    def fits_without(self, uids: Iterable[str]) -> list[str]:
        """On which nodes."""
        with self.without(uids) as ledger:
            keeper = self.booked.keeper(ledger)
            return [
                node
                for node in NODES
                if isinstance(place(ledger, self.booked.request, NodeName(node), keeper), Placement)
            ]

    def order(self, uids: Iterable[str]) -> Order:
        """By the definition in words, in fractions."""
        chosen = [self.opportunistic[uid] for uid in uids]
        people = {self.opportunistic[uid].person for uid in self.staying() if self._part(uid)}
        share = self._uncovered() / len(people) if people else Fraction(0)
        below = Fraction(0)
        for person in people:
            has = sum((self._part(uid) for uid in self.staying() if self.opportunistic[uid].person == person), start=0)
            takes = sum((self._part(each.uid) for each in chosen if each.person == person), start=0)
            below += max(Fraction(0), min(has, share) - (has - takes))
        work = sum((NOON - each.started for each in chosen if each.started is not None), timedelta())
        return (sum(each.young_until > NOON for each in chosen), below, len(chosen), work)

    def _part(self, uid: str) -> Fraction:
        """Of the GPUs that are in question."""
        found = Fraction(0)
        for gpu, share in self.ledger.shares_of(PodUid(uid)).items():
            entry = self.ledger.entry(gpu)
            assert entry is not None
            if self.booked.request.allows_model(entry.gpu.model):
                found += Fraction(entry.held(share), entry.gpu.memory)
        return found

    def _uncovered(self) -> Fraction:
        found = Fraction(0)
        for entry in (entry for node in NODES for entry in self.ledger.entries(node)):
            if not self.booked.request.allows_model(entry.gpu.model):
                continue
            stays = {uid: share for uid, share in entry.shares.items() if share.state is not ShareState.RELEASING}
            ours = sum(entry.held(share) for uid, share in stays.items() if uid in self.opportunistic)
            others = sum(entry.held(share) for uid, share in stays.items() if uid not in self.opportunistic)
            is_open = not entry.gpu.unusable and entry.kept_for is None
            found += Fraction(entry.gpu.memory - others if is_open else ours, entry.gpu.memory)
        return found

    def best(self, order: Callable[[Iterable[str]], Order]) -> tuple[Order, str] | None:
        """What the best of all sets costs, and on which node."""
        found = []
        for node in NODES:
            there = [uid for uid in self.staying() if node in self.ledger.nodes_held_by(PodUid(uid))]
            sets = [chosen for size in range(len(there) + 1) for chosen in combinations(there, size)]
            found += [(order(chosen), node) for chosen in sets if node in self.fits_without(chosen)]
        return min(found, default=None)

    def check(self, answer: Placement | Revocation | Refusal, order: Callable[[Iterable[str]], Order]) -> None:
        best = self.best(order)
        event(type(answer).__name__)
        if best is None or isinstance(answer, Placement):
            assert isinstance(answer, Refusal if best is None else Placement)
            assert best is None or best[0] == order(())
            return
        assert isinstance(answer, Revocation)
        chosen = [victim.uid for victim in answer.victims]
        event(f"{len(chosen)} victims")
        assert set(chosen) <= set(self.staying())
        (young, below, count, _), (best_young, best_below, best_count, _) = order(chosen), best[0]
        event("the best set" if order(chosen) == best[0] else "another set")
        assert young <= best_young + 1
        assert count <= best_count + 1
        assert young > best_young or below <= best_below + max(map(self._part, chosen), default=Fraction(0))
        self.check_room(answer)

    def check_room(self, answer: Revocation) -> None:
        chosen = [victim.uid for victim in answer.victims]
        for uid in chosen:
            left = [other for other in chosen if other != uid]
            assert answer.node not in self.fits_without(left), f"{uid} is superfluous"
        with self.without(chosen) as ledger:
            request, keeper = self.booked.request, self.booked.keeper(ledger)
            assert isinstance(place(ledger, request, answer.node, keeper), Placement)
            able = {entry.gpu for entry in able_entries(ledger, request, answer.node, keeper)}
            assert len(answer.gpus) == request.gpus and able.issuperset(answer.gpus)
            if request.topology.mode is TopologyMode.REQUIRED:
                assert len({gpu.island for gpu in answer.gpus}) == 1


def _node(name: str, drawn: Sequence[tuple[int, str, str, str]]) -> Node:
    return Node(
        NodeName(name),
        tuple(
            a_gpu(name, index, size, model=model, island=island, unusable=unusable)
            for index, (size, model, island, unusable) in enumerate(drawn)
        ),
    )


def cases(most_gpus: int) -> st.SearchStrategy[Case]:
    """Two nodes with at most so many GPUs each, pods that hold parts of them, and a booked pod that needs some."""
    nodes = st.lists(gpus, min_size=1, max_size=most_gpus)
    # Of each node, on each GPU: which pods want how much of it.
    on_gpu = [st.lists(st.tuples(st.sampled_from(names), parts), min_size=1, max_size=4) for names in PODS.values()]
    return st.builds(
        Case,
        st.tuples(nodes, nodes),
        st.tuples(*(st.lists(wanted, min_size=most_gpus, max_size=most_gpus) for wanted in on_gpu)),
        st.fixed_dictionaries({name: pods for names in PODS.values() for name in names}),
        st.sampled_from(REQUESTS),
        st.lists(
            st.tuples(st.sampled_from(NODES), st.integers(0, 2), st.sampled_from(["other", "booking", "uid-booked"])),
            max_size=1,
        ),
    )


@settings(max_examples=300, deadline=None)
@given(cases(3))
def test_the_best_set_of_victims_has_at_most_one_pod_less(case: Case) -> None:
    case.check(revoke(case.ledger, case.booked, case.opportunistic.values()), case.order)


@settings(max_examples=100, deadline=None)
@given(cases(8), st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_the_pods(case: Case, rng: Random) -> None:
    shuffled = list(case.opportunistic.values())
    rng.shuffle(shuffled)

    assert revoke(case.ledger, case.booked, shuffled) == revoke(case.ledger, case.booked, case.opportunistic.values())


@settings(max_examples=100, deadline=None)
@given(cases(3), st.integers())
def test_random_victims_are_the_fewest_or_one_more_and_as_few_young_pods_as_possible(case: Case, seed: int) -> None:
    answer = revoke(case.ledger, case.booked, case.opportunistic.values(), Random(seed))

    best = case.best(lambda uids: (*case.order(uids)[:1], Fraction(0), *case.order(uids)[2:3], timedelta()))
    if isinstance(answer, Revocation):
        assert best is not None
        young, _, count, _ = case.order(victim.uid for victim in answer.victims)
        assert young <= best[0][0] + 1
        assert count <= best[0][2] + 1
        case.check_room(answer)
    else:
        assert isinstance(answer, Refusal) == (best is None)


@settings(max_examples=100, deadline=None)
@given(cases(8))
def test_a_search_that_is_cut_short_still_finds_victims_of_whom_none_is_superfluous(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victims, "MOST_NODES", 1)
        answer = revoke(case.ledger, case.booked, case.opportunistic.values())

    assert type(answer) is type(revoke(case.ledger, case.booked, case.opportunistic.values()))
    if isinstance(answer, Revocation):
        case.check_room(answer)


@settings(max_examples=100, deadline=None)
@given(cases(8))
def test_the_ledger_is_the_same_afterwards(case: Case) -> None:
    before = {uid: dict(case.ledger.shares_of(uid)) for uid in case.ledger.holders()}

    revoke(case.ledger, case.booked, case.opportunistic.values())

    assert {uid: dict(case.ledger.shares_of(uid)) for uid in case.ledger.holders()} == before
    case.ledger.audit()
