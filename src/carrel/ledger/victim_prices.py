"""What it costs if opportunistic pods lose their GPUs: how much more than others their people hold, and the work lost.

All costs are whole numbers, so that no comparison depends on rounding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import lcm
from random import Random

from carrel.ledger.ledger import Ledger
from carrel.ledger.requests import Request
from carrel.ledger.shares import ShareState

MICROSECOND = timedelta(microseconds=1)
LONG_AGO, NEVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
ONE_POD = lcm(*range(1, 17))
"""What one pod counts in a cost. It can be divided by the number of GPUs that the pod holds."""

Cost = tuple[int, int, int, int]
"""Young pods, what is taken from people at or below the equal share, pods, work. Costs are compared from the left."""
NOTHING: Cost = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class OpportunisticPod:
    """A pod that holds a GPU without a booking. It says nothing that changes with time alone, so that as long as the
    pod is the same, this may be the same object."""

    uid: str
    person: str
    """Whose it is. A namespace without an owner is one person. Empty: it counts for nobody."""
    started: datetime | None = None
    """The work since then is lost if it must stop. None: it has not started."""
    young_until: datetime = LONG_AGO
    """Until then it has run for less than the minimum time."""


@dataclass(frozen=True, slots=True)
class Opportunists:
    """The pods that hold GPUs without a booking, by uid; nobody is in both."""

    victims: Mapping[str, OpportunisticPod]
    """Who may lose their GPUs."""
    stuck: Mapping[str, OpportunisticPod] = field(default_factory=dict)
    """Who should have given theirs back and has not. Nobody waits for such a pod, and it is no victim again; but what
    it holds counts as held by its person, who is the more likely to lose another GPU."""


def sum_of(costs: Iterable[Cost]) -> Cost:
    total = NOTHING
    for cost in costs:
        total = (total[0] + cost[0], total[1] + cost[1], total[2] + cost[2], total[3] + cost[3])
    return total


class EqualShare:
    """What each person holds without a booking, and how much of that is above the equal share.

    The equal share is what is not covered of the GPUs in question, divided by the people who hold some of it without a
    booking. In question are the models that the booked pod may have. If all models counted, a hundred old GPUs that
    nobody wants would raise the share so far that nobody is above it, even who holds all of the new ones.

    A GPU of which booked pods hold a half counts as a half; one that nobody new may have now (out of use, or kept for a
    booked pod) as what opportunistic pods still hold of it. So it never happens that all people are above the share.
    What a pod that is ending holds will soon be free, so it counts for nobody, unless the pod is stuck.
    """

    def __init__(self, ledger: Ledger, pods: Opportunists, request: Request) -> None:
        stuck, victims, releasing = pods.stuck, pods.victims, ShareState.RELEASING
        allowed: dict[str, bool] = {}
        in_question = []
        for name in ledger.nodes:
            node = ledger.node(name)
            is_closed = node is None or bool(node.out_of_use)
            for entry in ledger.entries(name):
                model = entry.gpu.model
                if model not in allowed:
                    allowed[model] = request.allows_model(model)
                if allowed[model] and entry.gpu.memory > 0:
                    in_question.append((entry, is_closed))
        # One GPU is so many parts that every MiB of every GPU is a whole number of them.
        whole = lcm(*{entry.gpu.memory for entry, _ in in_question})
        people: dict[str, int] = {}
        taken_with: dict[str, int] = {}
        uncovered = 0
        for entry, is_closed in in_question:
            gpu, stays, revocable = entry.gpu, 0, 0
            parts_of_mib = whole // gpu.memory
            for uid, share in entry.shares.items():
                part = gpu.memory if share.memory is None else min(share.memory, gpu.memory)
                if uid in stuck:
                    person = stuck[uid].person
                elif share.state is releasing:
                    continue
                else:
                    person = victims[uid].person if uid in victims else ""
                if person:
                    revocable += part
                    people[person] = people.get(person, 0) + part * parts_of_mib
                    taken_with[uid] = taken_with.get(uid, 0) + part * parts_of_mib
                else:
                    stays += part
            is_open = not is_closed and entry.kept_for is None and not gpu.unusable
            uncovered += max(gpu.memory - stays if is_open else 0, revocable) * parts_of_mib
        # Instead of dividing what is not covered by the number of people, what they hold is multiplied by it.
        self.above = {person: max(0, held * len(people) - uncovered) for person, held in people.items()}
        """What each person holds above the equal share."""
        self.taken_with = {uid: taken * len(people) for uid, taken in taken_with.items()}
        """What a person loses with each pod."""


class Prices:
    """What it costs if pods lose their GPUs."""

    def __init__(self, ledger: Ledger, pods: Opportunists, request: Request, now: datetime, rng: Random | None) -> None:
        """With `rng`, chance takes the place of what people hold, and of the work that is lost."""
        self._victims = pods.victims
        share = EqualShare(ledger, pods, request) if rng is None else None
        self._above: Mapping[str, int] = share.above if share is not None else {}
        self._taken_with: Mapping[str, int] = share.taken_with if share is not None else {}
        # In a fixed order, so that each gets the same number in whichever order they come.
        drawn = {uid: rng.getrandbits(48) for uid in sorted(self._victims)} if rng is not None else None
        above, taken_with = self._above, self._taken_with
        self.alone: dict[str, Cost] = {}
        """What each pod costs if it is the first of its person."""
        for uid, pod in self._victims.items():
            below = taken_with.get(uid, 0) - above.get(pod.person, 0)
            work = 0 if pod.started is None or pod.started > now else (now - pod.started) // MICROSECOND
            if drawn is not None:
                work = drawn[uid]
            self.alone[uid] = (ONE_POD if now < pod.young_until else 0, below if below > 0 else 0, ONE_POD, work)

    def of_next(self, uid: str, taken: Mapping[str, int]) -> Cost:
        """Return what a further pod costs, if so much is taken from each person already: never less than alone."""
        young, below, pods, work = self.alone[uid]
        person = self._victims[uid].person
        if before := taken.get(person, 0):
            above = self._above[person]
            below = max(0, before + self._taken_with.get(uid, 0) - above) - max(0, before - above)
        return (young, below, pods, work)

    def take(self, uid: str, taken: dict[str, int]) -> Cost:
        """Return what the further pod costs, and add to `taken` what its person loses."""
        cost, person = self.of_next(uid, taken), self._victims[uid].person
        taken[person] = taken.get(person, 0) + self._taken_with.get(uid, 0)
        return cost

    def of_all(self, uids: Iterable[str]) -> Cost:
        taken: dict[str, int] = {}
        return sum_of([self.take(uid, taken) for uid in uids])
