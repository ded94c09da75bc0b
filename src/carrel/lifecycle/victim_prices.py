"""What it costs if pods lose their GPUs: how much more than others their people hold, and what work is lost.

All costs are whole numbers, so that no comparison depends on rounding. This is counted over the whole cluster whenever
a booked pod needs a GPU, so nodes whose GPUs are all held whole are not looked into (`Ledger.whole_holders`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import lcm
from random import Random

from carrel.ledger.ledger import Card, Ledger, WholeHolders
from carrel.ledger.requests import Request
from carrel.ledger.shares import Holder, Share, ShareState

ONE_POD = lcm(*range(1, 17))
"""What one pod counts in a cost. It can be divided by the number of GPUs that the pod holds."""
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class OpportunisticPod:
    """A pod that holds a GPU without a booking."""

    holder: Holder
    work: timedelta
    """What is lost if it must stop now: the time since its last checkpoint or its start."""
    person: str
    """Whose it is. A namespace without an owner is one person. Empty, of a pod that is stuck: it does not count."""
    is_young: bool = False
    """Whether it runs for less than the minimum time."""


Cost = tuple[int, int, int, int]
"""Young pods, what is taken from people at or below the equal share, pods, work. Costs are compared from the left."""
NOTHING: Cost = (0, 0, 0, 0)


def sum_of(one: Cost, other: Cost) -> Cost:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


@dataclass(frozen=True, slots=True)
class Holders:
    """The pods that hold GPUs without a booking, by uid."""

    victims: Mapping[str, OpportunisticPod]
    """Who may lose theirs."""
    stuck: Mapping[str, OpportunisticPod]
    """Who should have given theirs back."""

    def holds(self, share: Share) -> bool:
        """Whether it counts as held without a booking. What a pod that is ending holds will soon be free."""
        stuck = self.stuck.get(share.holder.uid)
        if stuck is not None:
            return bool(stuck.person)
        return share.holder.uid in self.victims and share.state is not ShareState.RELEASING

    def are_victims(self, holders: WholeHolders) -> bool:
        """Whether all of them may lose their GPUs."""
        uids = holders.gpus_of.keys()
        return uids <= self.victims.keys() and not (self.stuck and uids & self.stuck.keys())

    def stays(self, share: Share) -> bool:
        """Whether it counts as held by others."""
        is_ending = share.state is ShareState.RELEASING and share.holder.uid not in self.stuck
        return not is_ending and not self.holds(share)


class EqualShare:
    """What each person holds without a booking, and how much of that is above the equal share.

    The equal share is what is not covered of the GPUs in question, divided by the people who hold some of it without a
    booking. In question are the models that the booked pod may have. If all models counted, a hundred old GPUs that
    nobody wants would raise the share so far that nobody is above it, even who holds all of the new ones.

    A GPU of which booked pods hold a half counts as a half; one that nobody new may have now (out of use, or kept for a
    booked pod) as what opportunistic pods still hold of it. So it never happens that all people are above the share.
    """

    def __init__(self, ledger: Ledger, request: Request, pods: Holders) -> None:
        uniform, cards = _gpus_in_question(ledger, request, pods)
        # One GPU is so many parts that every MiB of every GPU is a whole number of them.
        whole = lcm(*{holders.memory for holders in uniform}, *{card.gpu.memory for card in cards})
        takes = {uid: gpus * whole for holders in uniform for uid, gpus in holders.gpus_of.items()}
        uncovered = whole * sum(holders.gpus for holders in uniform)
        closed = {name for name in ledger.nodes if (node := ledger.node(name)) is not None and node.unusable}
        for card in cards:
            is_open = card.kept_for is None and not card.gpu.unusable and card.gpu.node not in closed
            stays, revocable = _held(card, whole, pods, takes) if card.shares else (0, 0)
            uncovered += max(whole - stays if is_open else 0, revocable)
        stuck, victims = pods.stuck, pods.victims
        people: dict[str, int] = {}
        for uid, part in takes.items():
            person = (stuck.get(uid) or victims[uid]).person
            people[person] = people.get(person, 0) + part
        # Instead of dividing what is not covered by the number of people, what they hold is multiplied by it.
        self.takes, self.people = takes, len(people)
        """What a person loses with each pod, in parts of a GPU, before it is multiplied."""
        self.above = {person: max(0, held * len(people) - uncovered) for person, held in people.items()}
        """What each person holds above the equal share."""


def _gpus_in_question(ledger: Ledger, request: Request, pods: Holders) -> tuple[list[WholeHolders], list[Card]]:
    """Of the models that are allowed: nodes of which pods without a booking hold all, and the GPUs of other nodes."""
    uniform, cards, allowed = [], [], dict[str, bool]()

    def is_allowed(model: str) -> bool:
        if model not in allowed:
            allowed[model] = request.allows_model(model)
        return allowed[model]

    for name in ledger.nodes:
        holders = ledger.whole_holders(name)
        if holders is not None and pods.are_victims(holders):
            if is_allowed(holders.model):
                uniform.append(holders)
        else:
            cards += [card for card in ledger.cards(name) if card.gpu.memory > 0 and is_allowed(card.gpu.model)]
    return uniform, cards


def _held(card: Card, whole: int, pods: Holders, takes: dict[str, int]) -> tuple[int, int]:
    """How many parts of it other and opportunistic pods hold. What each of the latter holds is added to `takes`."""
    mib, stays, revocable = whole // card.gpu.memory, 0, 0
    for uid, share in card.shares.items():
        part = mib * min(card.held(share), card.gpu.memory)
        if pods.holds(share):
            revocable += part
            takes[uid] = takes.get(uid, 0) + part
        elif pods.stays(share):
            stays += part
    return stays, revocable


class Prices:
    """What it costs if pods lose their GPUs."""

    def __init__(self, ledger: Ledger, request: Request, holders: Holders, rng: Random | None) -> None:
        self.pods = pods = holders.victims
        self.stuck = holders.stuck
        share = EqualShare(ledger, request, holders) if rng is None else None
        self._takes: Mapping[str, int] = share.takes if share is not None else {}
        self._above: Mapping[str, int] = share.above if share is not None else {}
        self._people = people = share.people if share is not None else 0
        takes, above = self._takes.get, self._above.get
        self.alone: dict[str, Cost] = {}
        """What each pod costs if it is the first of its person."""
        alone = self.alone
        for uid, pod in pods.items():
            below = takes(uid, 0) * people - above(pod.person, 0)
            work = pod.work // MICROSECOND if rng is None else rng.getrandbits(48)
            alone[uid] = (ONE_POD if pod.is_young else 0, below if below > 0 else 0, ONE_POD, work)

    def of_one(self, uid: str, taken: int) -> Cost:
        """Of one more pod of a person from whom so much is taken already. Of several, it is never less than the sum."""
        young, below, pods, work = self.alone[uid]
        if taken:
            above = self._above[self.pods[uid].person]
            below = max(0, taken + self._takes[uid] * self._people - above) - max(0, taken - above)
        return (young, below, pods, work)

    def of(self, uids: Iterable[str]) -> tuple[Cost, Mapping[str, int]]:
        """Of all of them, and what they take from each person."""
        cost, taken = NOTHING, dict[str, int]()
        for uid in uids:
            person = self.pods[uid].person
            cost = sum_of(cost, self.of_one(uid, taken.get(person, 0)))
            taken[person] = taken.get(person, 0) + self._takes.get(uid, 0) * self._people
        return cost, taken
