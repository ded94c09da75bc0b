"""What pods hold without a booking, node by node, and in all.

To count it over the whole cluster takes long. So it is kept between questions, and counted again only on nodes that
have changed since: in the ledger, or because something else is known of a pod there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

from carrel.ledger.ledger import Ledger
from carrel.ledger.shares import Share, ShareState

K = TypeVar("K")

EPOCH, MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)
LONG_AGO, NEVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


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


Kind = tuple[str, int]
"""The model of a GPU, and its MiB."""


class NodeHoldings(NamedTuple):
    """What is held of the GPUs of one node."""

    held: Mapping[tuple[str, Kind], int]
    """Person and kind of GPU → MiB without a booking."""
    uncovered: Mapping[Kind, int]
    """MiB that no booked pod holds or is to get."""
    kind: Kind | None
    """Of all its GPUs; None if they differ, or the size of one is not known."""
    pods: tuple[OpportunisticPod, ...]
    """Who may lose what it holds here, the latest first."""
    starts_us: tuple[int, ...]
    """When these have started, in microseconds since 1970."""
    young_until: datetime
    """Then none of these is young any more."""
    least: int
    """MiB that one of these holds here at least."""
    gpus_each: tuple[int, ...]
    """Of how many GPUs of the node each of these holds something, the most first."""
    has_ending: bool
    """Whether something becomes free by itself."""
    is_usable: bool


class Holdings:
    def __init__(
        self,
        ledger: Ledger,
        victims: Iterable[OpportunisticPod] = (),
        stuck: Mapping[str, OpportunisticPod] | None = None,
    ) -> None:
        self.ledger = ledger
        self.victims: dict[str, OpportunisticPod] = {}
        """By uid, who may lose its GPUs."""
        self.stuck: dict[str, OpportunisticPod] = {}
        """By uid, who should have given its GPUs back and has not. Nobody waits for it, and it is no victim again; but
        what it holds counts as held by its person, who is the more likely to lose another GPU."""
        self.held: dict[tuple[str, Kind], int] = {}
        """Person and kind of GPU → MiB without a booking, on all nodes."""
        self.uncovered: dict[Kind, int] = {}
        self._nodes: dict[str, NodeHoldings] = {}
        self._stale: set[str] = set()
        self._moment = -1  # of the ledger, when it was counted
        self.set_pods({pod.uid: pod for pod in victims}, stuck or {})

    def set_pods(self, victims: Mapping[str, OpportunisticPod], stuck: Mapping[str, OpportunisticPod]) -> None:
        """From now on these hold GPUs without a booking, by uid; `stuck` counts where a pod is in both."""
        known = self.victims.get
        changed = [uid for uid, pod in victims.items() if known(uid) is not pod]
        changed += self.victims.keys() - victims.keys()
        changed += [uid for uid in self.stuck.keys() | stuck.keys() if self.stuck.get(uid) != stuck.get(uid)]
        for uid in changed:
            # Where it held something before, the ledger has noted the change.
            self._stale |= self.ledger.nodes_held_by(uid)
        self.victims, self.stuck = dict(victims), dict(stuck)

    @property
    def nodes(self) -> Mapping[str, NodeHoldings]:
        """As they were when this was last brought up to date."""
        return self._nodes

    def is_held(self, share: Share) -> bool:
        """Whether it counts as held without a booking. What a pod that is ending holds will soon be free."""
        pod = self.stuck.get(share.holder.uid)
        if pod is None and share.state is not ShareState.RELEASING:
            pod = self.victims.get(share.holder.uid)
        return pod is not None and bool(pod.person)

    def update(self) -> None:
        """To be called before each question."""
        changed = self.ledger.changed_since(self._moment) if self._moment >= 0 else None
        if changed is None:
            changed = self.ledger.nodes
            for name in self._nodes.keys() - set(changed):
                self._set(name, None)
        for name in self._stale.union(changed):
            self._set(name, self._counted(name))
        self._stale, self._moment = set(), self.ledger.moment

    def _set(self, name: str, now: NodeHoldings | None) -> None:
        before = self._nodes.pop(name, None)
        if now is not None:
            self._nodes[name] = now
        for sign, there in ((-1, before), (1, now)):
            if there is not None:
                for holder, mib in there.held.items():
                    _add(self.held, holder, sign * mib)
                for kind, mib in there.uncovered.items():
                    _add(self.uncovered, kind, sign * mib)

    def _counted(self, name: str) -> NodeHoldings | None:
        node = self.ledger.node(name)
        if node is None:
            return None
        victims, stuck, releasing = self.victims, self.stuck, ShareState.RELEASING
        held: dict[tuple[str, Kind], int] = {}
        uncovered: dict[Kind, int] = {}
        parts: dict[str, int] = {}  # of those who may lose them
        gpus: dict[str, int] = {}
        has_ending, kinds = False, set[Kind]()
        for card in self.ledger.cards(name):
            gpu, stays, revocable = card.gpu, 0, 0
            kind = (gpu.model, gpu.memory)
            kinds.add(kind)
            if gpu.memory <= 0:
                continue
            for uid, share in card.shares.items():
                part = gpu.memory if share.memory is None else min(share.memory, gpu.memory)
                if uid in stuck:
                    person = stuck[uid].person
                elif share.state is releasing:
                    has_ending = True
                    continue
                elif uid in victims:
                    person = victims[uid].person
                    parts[uid] = parts.get(uid, 0) + part
                    gpus[uid] = gpus.get(uid, 0) + 1
                else:
                    person = ""
                if person:
                    revocable += part
                    held[person, kind] = held.get((person, kind), 0) + part
                else:
                    stays += part
            is_open = card.kept_for is None and not gpu.unusable and not node.out_of_use
            uncovered[kind] = uncovered.get(kind, 0) + max(gpu.memory - stays if is_open else 0, revocable)
        latest_first = sorted(((_start_us(victims[uid]), uid) for uid in parts), reverse=True)
        pods = tuple(victims[uid] for _, uid in latest_first)
        (only,) = kinds if len(kinds) == 1 else (None,)
        return NodeHoldings(
            held=held,
            uncovered=uncovered,
            kind=only if only is not None and only[1] > 0 else None,
            pods=pods,
            starts_us=tuple(start for start, _ in latest_first),
            young_until=max([pod.young_until for pod in pods], default=LONG_AGO),
            least=min(parts.values(), default=0),
            gpus_each=tuple(sorted(gpus.values(), reverse=True)),
            has_ending=has_ending,
            is_usable=not node.unusable,
        )


def _start_us(pod: OpportunisticPod) -> int:
    return micro_seconds(pod.started or NEVER)


def micro_seconds(moment: datetime) -> int:
    """Since 1970."""
    return (moment - EPOCH) // MICROSECOND


def _add(sums: dict[K, int], key: K, mib: int) -> None:
    """What is nothing is left out: so what is kept is equal to what is counted anew."""
    total = sums.get(key, 0) + mib
    if total:
        sums[key] = total
    else:
        sums.pop(key, None)
