"""Of thousands of nodes the best is found by a look at a few: it must be the one that a look at all would find."""

from collections.abc import Sequence
from random import Random
from typing import overload

import pytest

from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.node_names import NodeNames
from carrel.ledger.requests import WHOLE, Memory, Request
from carrel.ledger.scoring import Ranking
from carrel.ledger.shares import Share
from tests.kit.gpus import a_node, holder

NAMES = [f"n{number:03}" for number in range(150)]
REQUESTS = [Request(1, Memory(MiB(3000))), Request(2, WHOLE), Request(1, WHOLE), Request(1, Memory(MiB(99_999)))]


class Names(NodeNames):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._found = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._names[index]


@pytest.mark.parametrize("seed", range(8))
def test_the_best_node_is_the_same_by_a_look_at_a_few_and_at_all(seed: int) -> None:
    chance, machines = Random(seed), Machines()
    ledger = Ledger([a_node(name, cards=2) for name in NAMES])
    for name in NAMES:
        machines.set_node(name, MachineRoom(64_000, 64_000))
    ranking, held = Ranking(ledger, machines), []
    for step in range(120):
        request = chance.choice(REQUESTS)
        ranking.demand.saw(request, MachineRoom(1000, 1000), f"uid-{step}")
        asked = chance.sample([*NAMES, "unknown"], chance.choice([1, 15, 151]))

        few, all_ = ranking.best(request, Names(asked)), Ranking(ledger, machines)
        all_.demand = ranking.demand
        assert few == all_.best(request, asked)

        if few is not None and chance.random() < 0.8:
            uid, machine = f"uid-{step}", MachineRoom(chance.randrange(9) * 1000, 1000)
            gpu = max(ledger.cards(few.node), key=lambda card: card.free).gpu
            ledger.restore([Share(holder(uid), gpu.uuid, MiB(chance.randrange(1, 4000)))])
            machines.occupy(uid, few.node, machine)
            held.append(uid)
        elif held:
            gone = held.pop(chance.randrange(len(held)))
            ledger.forget(holder(gone).uid)
            machines.vacate(gone)
        if chance.random() < 0.02:
            ledger.remove_node(chance.choice(NAMES))
