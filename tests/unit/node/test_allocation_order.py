"""Whose turn it is when the kubelet comes for devices and does not say for whom."""

from hypothesis import given
from hypothesis import strategies as st

from carrel.ledger.shares import Holder
from carrel.node.allocation_order import Waiting, in_turn


def waiting(pod: str, amount: int = 8138, card: str = "GPU-0", since: int = 1, **more: object) -> Waiting:
    fields: dict[str, object] = {"container": "main", "position": 0, "is_answered": False, **more}
    return Waiting(holder=Holder(pod, "lab", pod), amount=amount, cards=(card,), since_ns=since, **fields)  # type: ignore[arg-type] # passed through


def names(turns: list[Waiting]) -> list[str]:
    return [each.holder.uid for each in turns]


def test_only_who_asks_for_exactly_so_many_is_meant() -> None:
    assert names(in_turn([waiting("a", 8137), waiting("b", 8138), waiting("c", 8139)], 8138)) == ["b"]


def test_among_equals_the_oldest_promise_comes_first() -> None:
    assert names(in_turn([waiting("late", since=2), waiting("early", since=1)], 8138)) == ["early", "late"]


def test_whose_own_card_it_is_comes_before_who_is_older() -> None:
    pods = [waiting("old", card="GPU-0", since=1), waiting("young", card="GPU-1", since=2)]
    assert names(in_turn(pods, 8138, {"GPU-1"})) == ["young", "old"]


def test_who_was_answered_comes_last_but_may_come_again() -> None:
    pods = [waiting("served", since=1, is_answered=True), waiting("not-yet", since=2)]
    assert names(in_turn(pods, 8138)) == ["not-yet", "served"]
    assert names(in_turn(pods[:1], 8138)) == ["served"]


def test_containers_of_a_pod_come_in_their_order() -> None:
    first, second = waiting("pod", container="a", position=0), waiting("pod", container="b", position=1)
    assert [each.container for each in in_turn([second, first], 8138)] == ["a", "b"]


WAITING = st.builds(
    Waiting,
    holder=st.sampled_from("abcd").map(lambda name: Holder(name, "lab", name)),
    container=st.sampled_from(["main", "side"]),
    position=st.integers(0, 3),
    amount=st.integers(1, 3),
    cards=st.sampled_from(["GPU-0", "GPU-1"]).map(lambda card: (card,)),
    since_ns=st.integers(0, 3),
    is_answered=st.booleans(),
)


@given(st.permutations(range(6)), st.lists(WAITING, min_size=6, max_size=6), st.integers(1, 3))
def test_the_order_does_not_depend_on_how_pods_are_listed(order: list[int], pods: list[Waiting], amount: int) -> None:
    def seen(turns: list[Waiting]) -> list[tuple[object, ...]]:
        return [(each.is_answered, each.since_ns, each.holder.uid, each.position) for each in turns]

    assert seen(in_turn(pods, amount)) == seen(in_turn([pods[i] for i in order], amount))


@given(st.lists(WAITING), st.integers(1, 3), st.sets(st.sampled_from(["GPU-0", "GPU-1"])))
def test_nobody_who_fits_is_forgotten_and_nobody_else_is_meant(
    pods: list[Waiting], amount: int, cards: set[str]
) -> None:
    turns = in_turn(pods, amount, cards)
    assert len(turns) == sum(each.amount == amount for each in pods)
    assert all(each.amount == amount for each in turns)
    if any(not each.is_answered for each in turns):
        assert not turns[0].is_answered


@given(st.lists(WAITING, min_size=1))
def test_serving_whoever_is_first_serves_everybody_once(pods: list[Waiting]) -> None:
    """The kubelet comes as often as containers wait: each gets its turn, whatever the order of promises."""
    unserved = {
        (each.holder.uid, each.container, each.position): each
        for each in (Waiting(e.holder, e.container, e.position, 1, e.cards, e.since_ns) for e in pods)
    }
    served: list[tuple[str, str, int]] = []
    while len(served) < len(unserved):
        now = [
            Waiting(e.holder, e.container, e.position, 1, e.cards, e.since_ns, is_answered=key in served)
            for key, e in unserved.items()
        ]
        first = in_turn(now, 1)[0]
        served.append((first.holder.uid, first.container, first.position))
    assert sorted(served) == sorted(unserved)
