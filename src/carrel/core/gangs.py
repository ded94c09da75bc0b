"""One plan for all pods of a gang, or none: half a gang would hold cards and wait for the other half for ever."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from carrel.core.gpus import MiB
from carrel.core.ledger import Ledger
from carrel.core.placement import Placement, Waiting, place
from carrel.core.reasons import Refusal
from carrel.core.requests import Gang

TRIES = 20_000
"""How many placements a plan may try. Equal members never go back; for unequal ones the search could explode."""

_LARGE_CARD = MiB(1 << 20)
"""Parts of a card and amounts of memory are compared on a card larger than any."""


@dataclass(frozen=True, slots=True)
class GangPlan:
    placements: Mapping[str, Placement]
    """By the member's uid."""


def plan_gang(ledger: Ledger, gang: Gang, members: Sequence[Waiting], tries: int = TRIES) -> GangPlan | Refusal:
    """Cards for every member at once. The ledger is left as it was."""
    if len(members) < gang.size:
        missing, here = gang.size - len(members), f"{len(members)} of {gang.size} are here"
        return Refusal(f"gang {gang.name} waits for {missing} more member{'s' * (missing > 1)}: {here}")
    with ledger.what_if():
        return _search(ledger, gang, _line_up(members), tries)


def _line_up(members: Sequence[Waiting]) -> Sequence[Waiting]:
    """The most demanding first, while there is most room. Equal members stand together: their search is short."""
    members = sorted(members, key=lambda member: member.holder.uid)
    kinds: dict[tuple[object, ...], int] = {}
    for member in members:
        kinds.setdefault((member.request, member.nodes), len(kinds))

    def demand(member: Waiting) -> tuple[int, int, int]:
        request = member.request
        return (-request.cards, -request.amount.on(_LARGE_CARD), kinds[request, member.nodes])

    return sorted(members, key=demand)


def _search(ledger: Ledger, gang: Gang, line: Sequence[Waiting], tries: int) -> GangPlan | Refusal:
    """Depth first over the members; every level remembers which nodes it has not tried yet."""
    found: list[tuple[int, Placement]] = []
    levels: list[Iterator[int]] = []
    most, stuck = -1, Refusal("")
    while len(found) < len(line):
        member = line[len(found)]
        if len(levels) == len(found):
            levels.append(_nodes_to_try(line, found))
        step: tuple[int, Placement] | None = None
        for position in levels[-1]:
            tries -= 1
            answer = place(ledger, member.request, member.nodes[position], member.holder.uid)
            if isinstance(answer, Placement):
                step = (position, answer)
                break
            if len(found) > most:
                stuck = answer
        if step is not None:
            for share in step[1].shares(member.holder):
                ledger.hold(share)
            found.append(step)
            continue
        most = max(most, len(found))
        if not found or tries <= 0:
            return Refusal(
                f"gang {gang.name} has room for {most} of its {len(line)} members; all or none are placed",
                (f"{line[most].holder} needs {line[most].request}", *([stuck.reason] if stuck.reason else [])),
            )
        levels.pop()
        found.pop()
        ledger.give_back(line[len(found)].holder.uid)
    return GangPlan({member.holder.uid: step[1] for member, step in zip(line, found, strict=True)})


def _nodes_to_try(line: Sequence[Waiting], found: Sequence[tuple[int, Placement]]) -> Iterator[int]:
    """Positions in the next member's list of nodes. What a member passed over, an equal one need not try again."""
    this, first = line[len(found)], 0
    if found:
        previous = line[len(found) - 1]
        if previous.request == this.request and previous.nodes == this.nodes:
            first = found[-1][0]
    return iter(range(first, len(this.nodes)))
