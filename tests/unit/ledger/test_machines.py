"""What is free on the machines, and what is remembered of those that are gone."""

from carrel.ids import NodeName
from carrel.ledger.gpus import MiB
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.scoring import Ranking
from tests.kit.gpus import N1, N2, a_ledger, a_node, memory

SIZE = MachineRoom(8000, 8000)


def test_nodes_that_come_and_go_are_not_remembered_for_ever() -> None:
    machines = Machines()
    machines.set_node(N1, SIZE)
    for number in range(100):
        machines.set_node(NodeName(f"spot-{number}"), SIZE)
        machines.remove_node(NodeName(f"spot-{number}"))

    assert list(machines.free) == ["n1"]


def test_costs_are_right_after_a_machine_is_gone_and_forgotten() -> None:
    machines = Machines()
    for name in ("n1", "n2"):
        machines.set_node(NodeName(name), MachineRoom(1000, 1000))
    ranking = Ranking(a_ledger(a_node("n1"), a_node("n2", gpus=4)), machines)
    asked, names = memory(MiB(100)), frozenset({N1, N2})
    before = ranking.best(asked, names, machine=SIZE)
    assert before is not None
    assert before.cost.is_short

    machines.remove_node(N2)
    for number in range(100):
        machines.set_node(NodeName(f"spot-{number}"), SIZE)
        machines.remove_node(NodeName(f"spot-{number}"))

    after = ranking.best(asked, names, machine=SIZE)
    assert after is not None
    assert (after.node, after.cost.is_short) == ("n2", False)
