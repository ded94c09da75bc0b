"""One plan for all pods of a gang, or none: a part of a gang would hold GPUs and wait for the rest for ever."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.ids import NO_NODE, HolderId, NodeName
from carrel.ledger.filtering import linked_first
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import fit_test
from carrel.ledger.placement import Placement, WaitingPod, held_placement, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang, Request
from carrel.ledger.shares import Holder

MOST_STEPS = 5_000
"""How far a search goes after the first member that finds no room: some hundredths of a second. Until then it takes as
long as there are members. Equal members never go back; for unequal ones the search could explode."""
STEPS_BY_GPU = 10
"""To look at the GPUs of a node, or to give some back, takes so many times as long as to look at its summary."""

MOST_REMEMBERED = 1_000
"""Gangs whose last refusal is kept; then all are forgotten, which costs only time."""

_NOTHING_KNOWN: Mapping[HolderId, tuple[NodeName, ...]] = {}
_NONE_AVOIDED: Mapping[HolderId, Collection[NodeName]] = {}
_LARGE_GPU = MiB(1 << 20)
"""Parts of a GPU and amounts of memory are compared on a GPU larger than any."""


@dataclass(frozen=True, slots=True)
class GangMembers:
    """The pods of a gang that exist now, the oldest first."""

    waiting: Sequence[tuple[Holder, Request]]
    bound: int
    gated: int = 0
    """Members that exist, but that their scheduling gates hold back: they cannot be bound, so they do not count."""


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Placements for all waiting pods of a gang, which fit at the same time."""

    placements: Mapping[HolderId, Placement]
    """By the member's uid."""


def plan_gang(ledger: Ledger, gang: Gang, members: Sequence[WaitingPod], steps: int = MOST_STEPS) -> GangPlan | Refusal:
    """GPUs for every member at once. The ledger is left as it was."""
    if len(members) < gang.size:
        missing, here = gang.size - len(members), f"{len(members)} of {gang.size} are here"
        return Refusal(f"gang {gang.name} waits for {missing} more member{'s' * (missing > 1)}: {here}")
    with ledger.what_if():
        return _search(ledger, gang, _line_up(members), steps)


def _line_up(members: Sequence[WaitingPod]) -> Sequence[WaitingPod]:
    """Who has the fewest nodes to go to first, then the most demanding. Equal members stand together."""
    kinds: dict[tuple[Request, int], int] = {}
    lists: dict[tuple[NodeName, ...], int] = {}  # of nodes → a number
    equal_to: dict[int, int] = {}  # the `id` of a list of nodes → its number
    demands: dict[HolderId, tuple[int, ...]] = {}
    for member in sorted(members, key=lambda member: member.holder.uid):
        request, nodes = member.request, member.nodes
        if id(nodes) not in equal_to:  # a hash of thousands of names is not made for each member
            equal_to[id(nodes)] = lists.setdefault(nodes, len(lists))
        kind = kinds.setdefault((request, equal_to[id(nodes)]), len(kinds))
        demands[member.holder.uid] = (len(nodes), -request.gpus, -request.amount.on(_LARGE_GPU), kind)
    return sorted(members, key=lambda member: (demands[member.holder.uid], member.holder.uid))


def _search(ledger: Ledger, gang: Gang, line: Sequence[WaitingPod], steps: int) -> GangPlan | Refusal:
    """Depth first over the members; every level remembers which nodes it has not tried yet."""
    found: list[tuple[int, Placement]] = []
    levels: list[Iterator[int]] = []
    most, stuck = -1, Refusal("")
    while len(found) < len(line):
        if len(levels) == len(found):
            levels.append(_nodes_to_try(line, found))
        step, refusal, looks = _next_step(ledger, line[len(found)], levels[-1])
        steps -= looks if most >= 0 else 0
        if step is not None:
            ledger.hold(*step[1].shares(line[len(found)].holder))
            found.append(step)
            continue
        before = len(found)
        if before > most:
            most, stuck = before, refusal
        is_over = steps <= 0 or not _go_back(ledger, line, found, levels)
        steps -= STEPS_BY_GPU * (before - len(found))
        if is_over:
            return Refusal(
                f"gang {gang.name} has room for {most} of its {len(line)} members; all or none are placed",
                (f"{line[most].holder} needs {line[most].request}", *([stuck.reason] if stuck.reason else [])),
            )
    return GangPlan({member.holder.uid: step[1] for member, step in zip(line, found, strict=True)})


def _next_step(
    ledger: Ledger, member: WaitingPod, positions: Iterator[int]
) -> tuple[tuple[int, Placement] | None, Refusal, int]:
    """The next node that takes the member, and its GPUs there; or why the last one did not. And the steps it took."""
    fits, rooms, is_kept_for = fit_test(member.request), ledger.rooms, bool(ledger.kept_for(member.holder.uid))
    last, looks = NO_NODE, STEPS_BY_GPU
    for position in positions:
        looks += 1
        last = member.nodes[position]
        # Summaries leave out what is kept for somebody: whoever it may be kept for must look at the GPUs.
        if is_kept_for or (last in rooms and fits(rooms[last])):
            looks += STEPS_BY_GPU
            answer = place(ledger, member.request, last, member.holder.uid)
            if isinstance(answer, Placement):
                return (position, answer), Refusal(""), looks
    refusal = place(ledger, member.request, last, member.holder.uid) if last else Refusal("")
    return None, refusal if isinstance(refusal, Refusal) else Refusal(""), looks


def _go_back(
    ledger: Ledger, line: Sequence[WaitingPod], found: list[tuple[int, Placement]], levels: list[Iterator[int]]
) -> bool:
    """To the last member whose other choice could make a difference; False if there is none.

    Equal members fill one node after the other: where the next of them finds no room, no other order of them would.
    """
    stuck = line[len(found)]
    del levels[len(found) :]
    while found:
        found.pop()
        member = line[len(found)]
        ledger.give_back(member.holder.uid)
        if (member.request, member.nodes) != (stuck.request, stuck.nodes):
            return True
        levels.pop()
    return False


def _nodes_to_try(line: Sequence[WaitingPod], found: Sequence[tuple[int, Placement]]) -> Iterator[int]:
    """Positions in the next member's list of nodes. What a member passed over, an equal one need not try again."""
    this, first = line[len(found)], 0
    if found:
        previous = line[len(found) - 1]
        # As parts of tuples they are first compared by identity: mostly it is the same list of thousands of nodes.
        if (previous.request, previous.nodes) == (this.request, this.nodes):
            first = found[-1][0]
    return iter(range(first, len(this.nodes)))


class GangPlanner:
    """Plans gangs from the members that exist. The last refusal of each gang is kept until something has changed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._refused: dict[str, tuple[object, Refusal]] = {}

    def plan(
        self,
        gang: Gang,
        members: GangMembers,
        nodes: Sequence[NodeName],
        nodes_of: Mapping[HolderId, tuple[NodeName, ...]] = _NOTHING_KNOWN,
        avoided: Mapping[HolderId, Collection[NodeName]] = _NONE_AVOIDED,
    ) -> GangPlan | Refusal:
        """For all members that wait or, if they are too many, for as many as the gang needs, the oldest first.

        `nodes_of` says of members, by uid, where they may go; of others it is assumed that they may go to `nodes`.
        To the nodes that it has avoided lately a member goes only if there is no plan without them.
        """
        question = (
            *(self._ledger.version, tuple(members.waiting), members.gated, tuple(nodes), tuple(nodes_of.items())),
            tuple((uid, frozenset(names)) for uid, names in avoided.items()),
        )
        known = self._refused.get(gang.name)
        if known is not None and known[0] == question:
            return known[1]
        plan = self._plan_avoiding(gang, members, nodes, nodes_of, avoided)
        if isinstance(plan, Refusal):
            if members.gated and len(members.waiting) < gang.size:
                plan = replace(plan, reason=f"{plan.reason}, {members.gated} held back by scheduling gates")
            if len(self._refused) >= MOST_REMEMBERED:
                self._refused.clear()
            self._refused[gang.name] = (question, plan)
        return plan

    def _plan_avoiding(
        self,
        gang: Gang,
        members: GangMembers,
        nodes: Sequence[NodeName],
        nodes_of: Mapping[HolderId, tuple[NodeName, ...]],
        avoided: Mapping[HolderId, Collection[NodeName]],
    ) -> GangPlan | Refusal:
        if not avoided:
            return self._plan_for_enough(gang, members, nodes, nodes_of)
        lists = {uid: nodes_of.get(uid, tuple(nodes)) for uid in avoided}
        without = {uid: tuple(name for name in lists[uid] if name not in avoided[uid]) for uid in lists}
        plan = self._plan_for_enough(gang, members, nodes, {**nodes_of, **without})
        if isinstance(plan, GangPlan):
            return plan
        last = {uid: (*without[uid], *(name for name in lists[uid] if name in avoided[uid])) for uid in lists}
        return self._plan_for_enough(gang, members, nodes, {**nodes_of, **last})

    def _plan_for_enough(
        self,
        gang: Gang,
        members: GangMembers,
        nodes: Sequence[NodeName],
        nodes_of: Mapping[HolderId, tuple[NodeName, ...]],
    ) -> GangPlan | Refusal:
        plan = self._plan_for(gang, members.waiting, nodes, nodes_of)
        if isinstance(plan, Refusal) and len(members.waiting) > gang.size:
            plan = self._plan_for(gang, members.waiting[: gang.size], nodes, nodes_of)
        return plan

    def _plan_for(
        self,
        gang: Gang,
        members: Sequence[tuple[Holder, Request]],
        nodes: Sequence[NodeName],
        nodes_of: Mapping[HolderId, tuple[NodeName, ...]],
    ) -> GangPlan | Refusal:
        # GPUs that a member has on Leases, from a try that was cut short, it keeps; the plan is for the others.
        kept: dict[HolderId, Placement] = {}
        everywhere, ordered = tuple(nodes), dict[tuple[Request, int], tuple[NodeName, ...]]()
        others = []
        for holder, request in members:
            held = held_placement(self._ledger, request, holder)
            if held is not None:
                kept[holder.uid] = held
            elif self._ledger.shares_of(holder.uid):
                return Refusal(f"gang {gang.name}: some GPUs are still recorded for an earlier bind of {holder}")
            else:
                allowed = nodes_of.get(holder.uid, everywhere)
                if (request, id(allowed)) not in ordered:  # once for each kind of member
                    ordered[request, id(allowed)] = linked_first(self._ledger, request, allowed)
                others.append(WaitingPod(holder, request, ordered[request, id(allowed)]))
        missing = max(gang.size - len(members), 0)
        plan = plan_gang(self._ledger, Gang(gang.name, len(others) + missing), others)
        return plan if isinstance(plan, Refusal) else GangPlan({**kept, **plan.placements})
