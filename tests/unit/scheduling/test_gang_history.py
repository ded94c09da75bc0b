"""What is remembered of a gang stays small."""

from carrel.scheduling.gang_history import GangHistory


def test_members_that_may_go_to_the_same_nodes_share_one_list() -> None:
    history = GangHistory()
    for number in range(100):
        history.remember(f"m{number}", tuple(f"n{index}" for index in range(50 + number % 2)))

    assert len({id(nodes) for nodes in history.nodes.values()}) == 2
    assert [len(history.nodes[uid]) for uid in ("m0", "m1", "m98", "m99")] == [50, 51, 50, 51]


def test_members_that_do_not_wait_any_more_are_forgotten() -> None:
    history = GangHistory()
    for uid in ("a", "b"):
        history.remember(uid, ("n1",))
        history.told[uid] = "n1"

    history.forget_others({"b"})

    assert history.nodes == {"b": ("n1",)}
    assert history.told == {"b": "n1"}
