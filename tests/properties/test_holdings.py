"""What is kept of pods without a booking between questions is what would be counted anew, whatever has changed."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import WaitingPod
from carrel.ledger.requests import Topology, TopologyMode
from carrel.ledger.shares import Holder, Share
from carrel.lifecycle.holdings import Holdings, OpportunisticPod
from carrel.lifecycle.victims import revoke
from tests.kit.gpus import A100, A6000, a_card, held, holder, memory, whole
from tests.kit.victims import NOON

NODES, PODS, PEOPLE = ("n1", "n2", "n3"), tuple("abcdef"), ("ada", "bob", "")
REQUESTS = (
    whole(),
    whole(2),
    whole(model=A100),
    memory(600),
    memory(300, cards=2),
    whole(2, topology=Topology(TopologyMode.REQUIRED)),
)
nodes, names, indices = st.sampled_from(NODES), st.sampled_from(PODS), st.integers(0, 2)
known_pods = st.fixed_dictionaries(
    {},
    optional={
        name: st.builds(
            OpportunisticPod,
            st.just(f"uid-{name}"),
            st.sampled_from(PEOPLE[:2]),
            st.none() | st.integers(-1, 3).map(lambda hours: NOON - timedelta(hours=hours)),
            st.sampled_from([NOON - timedelta(hours=1), NOON + timedelta(hours=1)]),
        )
        for name in PODS
    },
)


class KeptHoldings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger([_node(name, 3) for name in NODES])
        self.kept = Holdings(self.ledger)

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(pod=names, node=nodes, index=indices, mib=st.sampled_from([None, 200, 500, 1000, 2400]))
    def holds(self, pod: str, node: str, index: int, mib: int | None) -> None:
        """Also more than there is, and of GPUs that no node reports: as Leases may say it."""
        self.ledger.restore([held(pod, node, index, mib)])

    @rule(pod=names)
    def is_told_to_go(self, pod: str) -> None:
        self.ledger.release(f"uid-{pod}")

    @rule(pod=names)
    def goes(self, pod: str) -> None:
        self.ledger.give_back(f"uid-{pod}")

    @rule(node=nodes, cards=indices, model=st.sampled_from([A100, A6000]), unusable=st.sampled_from(["", "silent"]))
    def reports(self, node: str, cards: int, model: str, unusable: str) -> None:
        self.ledger.set_node(replace(_node(node, cards, model), unusable=unusable))

    @rule(node=nodes)
    def is_gone(self, node: str) -> None:
        self.ledger.remove_node(node)

    @rule(node=nodes, index=indices)
    def is_kept(self, node: str, index: int) -> None:
        self.ledger.set_card(f"GPU-{node}-{index}", _shares(self.ledger, f"GPU-{node}-{index}"), Holder("uid-booked"))

    @rule()
    def is_kept_no_more(self) -> None:
        self.ledger.keep_no_more("uid-booked")

    @rule(victims=known_pods, stuck=st.dictionaries(names, st.sampled_from(PEOPLE), max_size=2))
    def other_pods_are_known(self, victims: dict[str, OpportunisticPod], stuck: dict[str, str]) -> None:
        self.kept.set_pods(
            {pod.uid: pod for pod in victims.values()},
            {f"uid-{name}": OpportunisticPod(f"uid-{name}", person) for name, person in stuck.items()},
        )

    @rule(pod=names)
    def is_asked_in_a_what_if(self, pod: str) -> None:
        with self.ledger.what_if():
            self.ledger.release(f"uid-{pod}")
            self.check()

    # --- what must be ------------------------------------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        anew = Holdings(self.ledger, self.kept.victims.values(), self.kept.stuck)
        for each in (self.kept, anew):
            each.update()
        assert self.kept.nodes == anew.nodes
        assert (self.kept.held, self.kept.uncovered) == (anew.held, anew.uncovered)
        for request in REQUESTS:
            booked = WaitingPod(holder("booked"), request, NODES)
            assert revoke(self.kept, booked, NOON) == revoke(anew, booked, NOON)


def _node(name: str, cards: int, model: str = A100) -> Node:
    return Node(name, tuple(a_card(name, index, 1000 + 1400 * (index > 1), model=model) for index in range(cards)))


def _shares(ledger: Ledger, gpu: str) -> list[Share]:
    return [ledger.shares_of(uid)[gpu] for uid in ledger.holders_of(gpu)]


KeptHoldings.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestKeptHoldings = KeptHoldings.TestCase
