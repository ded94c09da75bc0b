"""What it costs if pods lose their GPUs: how much more than others their people hold, and what work is lost.

All costs are whole numbers, so that no comparison depends on rounding. What a pod costs is worked out when it is asked
for: most nodes of a large cluster need not be looked into.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import lcm
from random import Random

from carrel.ledger.requests import Request
from carrel.lifecycle.holdings import MICROSECOND, Holdings, Kind, OpportunisticPod

ONE_POD = lcm(*range(1, 17))
"""What one pod counts in a cost. It can be divided by the number of GPUs that the pod holds."""

Cost = tuple[int, int, int, int]
"""Young pods, what is taken from people at or below the equal share, pods, work. Costs are compared from the left."""
NOTHING: Cost = (0, 0, 0, 0)


def sum_of(one: Cost, other: Cost) -> Cost:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


class EqualShare:
    """What each person holds without a booking, and how much of that is above the equal share.

    The equal share is what is not covered of the GPUs in question, divided by the people who hold some of it without a
    booking. In question are the models that the booked pod may have. If all models counted, a hundred old GPUs that
    nobody wants would raise the share so far that nobody is above it, even who holds all of the new ones.

    A GPU of which booked pods hold a half counts as a half; one that nobody new may have now (out of use, or kept for a
    booked pod) as what opportunistic pods still hold of it. So it never happens that all people are above the share.
    """

    def __init__(self, holdings: Holdings, request: Request) -> None:
        kinds = {kind for kind in holdings.uncovered if request.allows_model(kind[0])}
        # One GPU is so many parts that every MiB of every GPU is a whole number of them.
        whole = lcm(*{memory for _, memory in kinds})
        parts = {kind: whole // kind[1] for kind in kinds}
        uncovered = sum(holdings.uncovered[kind] * parts[kind] for kind in kinds)
        people: dict[str, int] = {}
        for (person, kind), mib in holdings.held.items():
            if kind in kinds:
                people[person] = people.get(person, 0) + mib * parts[kind]
        # Instead of dividing what is not covered by the number of people, what they hold is multiplied by it.
        self.above = {person: max(0, held * len(people) - uncovered) for person, held in people.items()}
        """What each person holds above the equal share."""
        self.parts_of_mib = {kind: each * len(people) for kind, each in parts.items()}
        """What one MiB of each kind of GPU in question counts."""
        self._holdings = holdings

    def taken_with(self, uid: str) -> int:
        """What a person loses with the pod."""
        taken, ledger = 0, self._holdings.ledger
        for gpu, share in ledger.shares_of(uid).items():
            card = ledger.card(gpu)
            parts = self.parts_of_mib.get((card.gpu.model, card.gpu.memory)) if card is not None else None
            if card is not None and parts is not None and self._holdings.is_held(share):
                taken += parts * min(card.held(share), card.gpu.memory)
        return taken


class Prices:
    """What it costs if pods lose their GPUs."""

    def __init__(self, holdings: Holdings, request: Request, now: datetime, rng: Random | None) -> None:
        """With `rng`, chance takes the place of what people hold, and of the work that is lost."""
        self.pods: Mapping[str, OpportunisticPod] = holdings.victims
        self.now = now
        self._share = share = EqualShare(holdings, request) if rng is None else None
        self.above: Mapping[str, int] = share.above if share is not None else {}
        self.parts_of_mib: Mapping[Kind, int] = share.parts_of_mib if share is not None else {}
        # In a fixed order, so that each gets the same number in whichever order they come.
        self.drawn = {uid: rng.getrandbits(48) for uid in sorted(self.pods)} if rng is not None else None
        self._alone: dict[str, Cost] = {}
        self._taken: dict[str, int] = {}

    def alone(self, uid: str) -> Cost:
        """What a pod costs if it is the first of its person."""
        cost = self._alone.get(uid)
        if cost is None:
            pod = self.pods[uid]
            below = self._taken_with(uid) - self.above.get(pod.person, 0)
            work = max(0, (self.now - (pod.started or self.now)) // MICROSECOND)
            if self.drawn is not None:
                work = self.drawn[uid]
            cost = self._alone[uid] = (ONE_POD if self.now < pod.young_until else 0, max(0, below), ONE_POD, work)
        return cost

    def _taken_with(self, uid: str) -> int:
        if self._share is None:
            return 0
        if uid not in self._taken:
            self._taken[uid] = self._share.taken_with(uid)
        return self._taken[uid]

    def of_one(self, uid: str, taken: int) -> Cost:
        """Of one more pod of a person from whom so much is taken already. Of several, it is never less than the sum."""
        young, below, pods, work = self.alone(uid)
        if taken:
            above = self.above[self.pods[uid].person]
            below = max(0, taken + self._taken_with(uid) - above) - max(0, taken - above)
        return (young, below, pods, work)

    def of(self, uids: Iterable[str]) -> tuple[Cost, Mapping[str, int]]:
        """Of all of them, and what they take from each person."""
        cost, taken = NOTHING, dict[str, int]()
        for uid in uids:
            person = self.pods[uid].person
            cost = sum_of(cost, self.of_one(uid, taken.get(person, 0)))
            taken[person] = taken.get(person, 0) + self._taken_with(uid)
        return cost, taken
