"""What is remembered of a gang stays small."""

from carrel.ids import NodeName, PodUid
from carrel.scheduling.gang_nodes import GangHistory
from tests.kit.gpus import N1


def test_members_that_may_go_to_the_same_nodes_share_one_list() -> None:
    history = GangHistory()
    for number in range(100):
        history.remember(PodUid(f"m{number}"), tuple(NodeName(f"n{index}") for index in range(50 + number % 2)))

    assert len({id(nodes) for nodes in history.nodes.values()}) == 2
    assert [len(history.nodes[PodUid(uid)]) for uid in ("m0", "m1", "m98", "m99")] == [50, 51, 50, 51]


def test_members_that_do_not_wait_any_more_are_forgotten() -> None:
    history = GangHistory()
    for uid in ("a", "b"):
        history.remember(PodUid(uid), (N1,))
        history.told[PodUid(uid)] = N1

    history.forget_others({PodUid("b")})

    assert history.nodes == {"b": ("n1",)}
    assert history.told == {"b": "n1"}
