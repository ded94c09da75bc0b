"""Which pods a booking covers: a pure function of the bookings that run and of what people's pods hold and want.

A booking entitles its people to a number of GPUs of one model. The pods that it covers never touch more different GPUs
than that at once; parts of one GPU count as one GPU. Covered pods are booked, all other pods are opportunistic.

Pods are looked at in this order; one that does not fit is passed over, and nothing waits for it:

1. pods whose coverage by this booking is recorded on their Leases, by the instant it began: who is covered stays so
2. other pods that hold GPUs, by the instant they were bound
3. pods that wait, by their creation. Such a pod counts only if it could be placed were all opportunistic pods gone;
   else a wrong selector would use up the booking. If it wants a part of a GPU, and a GPU that its booking covers
   already has room for it, or can be given room by revocation, then it counts as no further GPU and goes only there
4. pods that wait and could be placed if, besides, all nodes and GPUs were in order: that a node is cordoned or silent,
   or a GPU broken, makes no pod opportunistic. They come last, so that they keep the booking from no pod that can run

Where several bookings would do, the one that ends last is taken. Every process evaluates the same function, so a race
between two of them for the last GPU of a booking ends the same way everywhere; what is on the Leases only gives the
order. A pod that is ending counts until it has given its GPUs back. The GPUs of a ResourceClaim count as those of one
of its pods (`resource_claims.holders`), together with what the pod has by its other claims.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from carrel.ids import NO_BOOKING, NO_NODE, BookingId, GpuUuid, HolderId, NodeName, PersonId
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.placement import allows, by_island
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.shares import Coverage, Holder, ShareState

MOST_REMEMBERED = 4_000
"""Different questions that are remembered with a node that would do."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What a booking entitles to: so many GPUs of a model, for these people, from its start to its end."""

    booking: BookingId
    """Its id."""
    people: frozenset[PersonId]
    model: str
    """Empty: any."""
    gpus: int
    start: datetime
    ends: datetime
    share_of: int = 1
    """More than one: not whole GPUs but such a part of one GPU's memory."""
    namespace: str = ""
    """Only for pods there. Empty: anywhere."""
    group: str = ""
    """The group that it was made for; empty: a person's own."""
    settled: datetime | None = None
    """From when others lose GPUs to it; before that, its pods get only what is free. None: from its start."""

    def runs_at(self, now: datetime) -> bool:
        return self.start <= now < self.ends

    def is_for(self, person: PersonId, namespace: str) -> bool:
        return person in self.people and self.namespace in ("", namespace)


@dataclass(frozen=True, slots=True)
class PersonsPod:
    """A pod of a person that holds GPUs or waits for some."""

    holder: Holder
    person: PersonId
    namespace: str
    """As bookings spell it."""
    created: datetime
    bound_at: datetime | None
    """None: it is not bound."""
    request: Request | None
    """None: it cannot be read; what the pod holds counts all the same."""
    nodes: tuple[NodeName, ...] = ()
    """Where it may run by everything that is not about GPUs; only of a pod that waits."""
    nodes_when_open: tuple[NodeName, ...] = ()
    """The same, as if no node were closed (`Node.closed`)."""
    wanted_booking: BookingId = NO_BOOKING
    """The id of the booking that it was made for; empty: any."""
    others: tuple[HolderId, ...] = ()
    """The uids of the ResourceClaims whose GPUs are the pod's."""

    @property
    def uids(self) -> tuple[HolderId, ...]:
        """By what it holds GPUs."""
        return (self.holder.uid, *self.others) if self.others else (self.holder.uid,)


@dataclass(frozen=True, slots=True)
class Covered:
    """The booking that covers a pod, and where."""

    entitlement: Entitlement
    only: frozenset[GpuUuid] = frozenset()
    """A pod that waits goes only on one of these GPUs. Empty: on any of the booked model."""
    not_on: frozenset[GpuUuid] = frozenset()
    """GPUs of which another booking covers a part, and is entitled to the rest; and those whose booked part is used
    up."""

    def narrowed(self, request: Request) -> Request:
        """What the pod asks for, of the booked GPUs."""
        if self.entitlement.model and not request.model:
            request = replace(request, model=self.entitlement.model)
        if not (self.only or self.not_on):
            return request
        return replace(request, selector=replace(request.selector, only=self.only, not_on=self.not_on))


@dataclass(slots=True)
class BookingUse:
    """What the covered pods of one booking touch."""

    entitlement: Entitlement
    gpus: dict[GpuUuid, int] = field(default_factory=dict)
    """GPU → MiB that covered pods hold of it, or are going to."""
    promised: dict[GpuUuid, int] = field(default_factory=dict)
    """The part of it that covered pods wait for."""
    coming: int = 0
    """Further GPUs, not known yet, that covered pods wait for."""

    @property
    def count(self) -> int:
        return len(self.gpus) + self.coming

    def limit_on(self, memory: int) -> int:
        """The most MiB of a GPU of that size that the booking entitles to."""
        return memory // self.entitlement.share_of

    def has_room_for(self, more: Mapping[GpuUuid, int], ledger: Ledger) -> bool:
        """Whether it would not be too much. Nobody can say that of a GPU that no node reports now."""
        if len(self.gpus.keys() | more.keys()) + self.coming > self.entitlement.gpus:
            return False
        return self.entitlement.share_of == 1 or all(
            (entry := ledger.entry(gpu)) is None or self.gpus.get(gpu, 0) + mib <= self.limit_on(entry.gpu.memory)
            for gpu, mib in more.items()
        )


Uses = dict[BookingId, BookingUse]
"""By booking; the one that ends last comes first."""


def uses_of(entitlements: Iterable[Entitlement]) -> Uses:
    """Bookings that nobody uses yet."""
    last_first = sorted(entitlements, key=lambda each: (-each.ends.timestamp(), each.booking))
    return {each.booking: BookingUse(each) for each in last_first}


# --- pods that hold GPUs ---------------------------------------------------------------------------------------------


def cover_holders(ledger: Ledger, uses: Uses, pods: Iterable[PersonsPod]) -> dict[HolderId, Covered]:
    """By uid. `uses` is filled with what they touch."""
    holding = [pod for pod in pods if any(map(ledger.shares_of, pod.uids))]
    theirs = _uses_by_person(uses, {pod.person for pod in holding})
    covered: dict[HolderId, Covered] = {}
    recorded = [(record, pod) for pod in holding for record in records_of(ledger, *pod.uids) if record.booking in uses]
    recorded.sort(key=lambda each: (each[0].since, each[1].holder.uid, each[0].booking))
    # Kubernetes writes whole seconds: pods are often bound in the same one.
    holding.sort(key=lambda pod: (pod.bound_at is None, pod.bound_at or pod.created, *waiting_order(pod)))
    tries = [(pod, uses[record.booking], True) for record, pod in recorded]
    tries += [(pod, use, False) for pod in holding for use in theirs[pod.person]]
    for pod, use, is_recorded in tries:
        if pod.holder.uid in covered or not _is_for(use.entitlement, pod, {} if is_recorded else uses):
            continue
        held = _held(ledger, pod, use.entitlement.model, is_recorded=is_recorded)
        if held is not None and use.has_room_for(held, ledger):
            use.gpus |= {gpu: use.gpus.get(gpu, 0) + mib for gpu, mib in held.items()}
            covered[pod.holder.uid] = Covered(use.entitlement)
    return covered


def _uses_by_person(uses: Uses, people: set[PersonId]) -> dict[PersonId, list[BookingUse]]:
    """Who shares a booking with a thousand others looks at their own bookings only."""
    found: dict[PersonId, list[BookingUse]] = {person: [] for person in people}
    for use in uses.values():
        for person in people & use.entitlement.people:
            found[person].append(use)
    return found


def records_of(ledger: Ledger, *uids: HolderId) -> set[Coverage]:
    """What the Leases say about a pod. Mostly one; a correction may have reached some of its Leases only."""
    return {each.coverage for uid in uids for each in ledger.shares_of(uid).values() if each.coverage is not None}


def _held(ledger: Ledger, pod: PersonsPod, model: str, *, is_recorded: bool) -> dict[GpuUuid, int] | None:
    """GPU → MiB; None if one is of another model. A GPU that no node reports now has the model that was recorded."""
    held: dict[GpuUuid, int] = {}
    for gpu, share in (each for uid in pod.uids for each in ledger.shares_of(uid).items()):
        entry = ledger.entry(gpu)
        if (entry is None and model and not is_recorded) or (entry is not None and model not in ("", entry.gpu.model)):
            return None
        held[gpu] = held.get(gpu, 0) + (entry.held(share) if entry is not None else share.memory or 0)
    return held


def _is_for(entitlement: Entitlement, pod: PersonsPod, uses: Uses) -> bool:
    """A pod that was made for one booking is not covered by another, as long as that one runs, unless that is recorded.
    Somebody else's booking cannot be meant."""
    if pod.wanted_booking and pod.wanted_booking != entitlement.booking:
        wanted = uses.get(pod.wanted_booking)
        if wanted is not None and wanted.entitlement.is_for(pod.person, pod.namespace):
            return False
    return entitlement.is_for(pod.person, pod.namespace)


class SharedGpus:
    """The GPUs of which bookings cover a part. Who booked whole GPUs is entitled to the rest of such a GPU as well;
    those who booked shares of a GPU share it."""

    def __init__(self) -> None:
        self._gpus_of: dict[HolderId, tuple[GpuUuid, ...]] = {}  # uid → the GPUs of which it holds a part
        self._covered_on: dict[GpuUuid, dict[HolderId, Entitlement]] = {}  # GPU → uid → what covers it
        self._closed: dict[bool, frozenset[GpuUuid]] = {}  # to bookings of whole GPUs, of shares
        self._is_known: set[bool] = set()

    def add(self, uid: HolderId, entitlement: Entitlement, gpus: Iterable[GpuUuid]) -> None:
        """A covered pod that holds parts of these GPUs."""
        if there := tuple(gpus):
            self._gpus_of[uid] = there
            for gpu in there:
                self._covered_on.setdefault(gpu, {})[uid] = entitlement
            self._is_known.clear()

    def remove(self, uid: HolderId) -> None:
        for gpu in self._gpus_of.pop(uid, ()):
            there = self._covered_on[gpu]
            del there[uid]
            if not there:
                del self._covered_on[gpu]
            self._is_known.clear()

    def is_closed(self, gpu: GpuUuid, entitlement: Entitlement) -> bool:
        """Whether a pod which this booking covers leaves the rest of the GPU to another booking."""
        return any(
            other.booking != entitlement.booking and not (entitlement.share_of > 1 and other.share_of > 1)
            for other in self._covered_on.get(gpu, {}).values()
        )

    def closed_to_further(self, entitlement: Entitlement) -> frozenset[GpuUuid]:
        """The GPUs that cannot become a further GPU of this booking: other bookings have them, or it has them already.
        The same for all bookings of whole GPUs, and for all of shares: so it is worked out once for thousands."""
        is_share, there = entitlement.share_of > 1, self._covered_on
        if is_share not in self._is_known:
            of_whole = (gpu for gpu, by in there.items() if any(each.share_of == 1 for each in by.values()))
            fresh = frozenset(of_whole if is_share else there)
            # The same object as long as it is equal: thousands of requests are compared by it.
            if self._closed.get(is_share) != fresh:
                self._closed[is_share] = fresh
            self._is_known.add(is_share)
        return self._closed[is_share]


# --- pods that wait --------------------------------------------------------------------------------------------------


class RevocableRoom:
    """How much room there would be if all opportunistic pods were gone."""

    def __init__(self, ledger: Ledger, is_revocable: Callable[[HolderId], bool], *, in_order: bool = False) -> None:
        """`is_revocable`: whether the pod of that uid is opportunistic, or gone."""
        self.if_in_order = self if in_order else RevocableRoom(ledger, is_revocable, in_order=True)
        """The same, as if all nodes and GPUs were in order."""
        self.in_order = in_order
        self._ledger = ledger
        self._is_revocable = is_revocable
        # The nodes asked about, one that would do, and the ledger's version. Without a node, none would do then.
        self._known: dict[_Question, tuple[tuple[NodeName, ...], NodeName, int]] = {}
        self._answers: dict[_Question, bool] = {}

    def look_anew(self) -> None:
        """Something may have changed. Until this is called again, the same question gets the same answer."""
        self._answers.clear()
        self.if_in_order._answers.clear()

    def _is_open(self, name: NodeName, request: Request) -> bool:
        """Whether the request may go to the node."""
        node = self._ledger.node(name)
        return node is not None and (self.in_order or not node.unusable) and request.selects(node)

    def on_gpu(self, entry: GpuEntry) -> int:
        stays = (
            entry.held(share)
            for uid, share in entry.shares.items()
            if share.state is not ShareState.RELEASING and not self._is_revocable(uid)
        )
        return entry.gpu.memory - sum(stays)

    def entry(self, gpu: GpuUuid, request: Request) -> GpuEntry | None:
        """None if no node reports it, or the request does not allow it."""
        entry = self._ledger.entry(gpu)
        if entry is None or not self._is_open(entry.gpu.node, request):
            return None
        is_usable = self.in_order or not entry.gpu.unusable
        return entry if is_usable and allows(entry.gpu, request) else None

    def could_place(self, request: Request, nodes: tuple[NodeName, ...], covered: Covered) -> bool:
        """On one of the nodes, on the booked GPUs. The node that would do last time is looked at first. Where none
        would do, only those that have changed."""
        # A hash of 5,000 names would cost more than the look at a node.
        booked = covered.entitlement
        question = (request, booked.model, booked.share_of, covered.not_on, id(nodes))
        if (answer := self._answers.get(question)) is not None:
            return answer
        _, node, version = self._known.get(question, (nodes, NO_NODE, -1))
        if not node or not self._fits(question, node):
            changed = self._ledger.changed_since(version) if version >= 0 and not node else None
            left = nodes if changed is None else set(changed).intersection(nodes) if changed else ()
            node = next((name for name in left if self._fits(question, name)), NO_NODE)
            if len(self._known) > MOST_REMEMBERED:
                self._known.clear()
            self._known[question] = (nodes, node, self._ledger.version)
        self._answers[question] = bool(node)
        return bool(node)

    def changed(self) -> None:
        """Pods that hold GPUs have become opportunistic."""
        for room in (self, self.if_in_order):
            room._known = {question: known for question, known in room._known.items() if known[1]}

    def _fits(self, question: "_Question", node: NodeName) -> bool:
        request, model, share_of, not_on, _ = question
        if not self._is_open(node, request):
            return False
        suiting = (
            entry
            for entry in self._ledger.entries(node)
            if model in ("", entry.gpu.model)
            and entry.gpu.uuid not in not_on
            and (self.in_order or not entry.gpu.unusable)
            and allows(entry.gpu, request)
            and (need := request.amount.on(entry.gpu.memory)) <= entry.gpu.memory // share_of
            and need <= self.on_gpu(entry)
        )
        if not request.needs_one_island:
            return len(tuple(islice(suiting, request.gpus))) == request.gpus  # no more are looked at than needed
        return any(island and len(found) >= request.gpus for island, found in by_island(tuple(suiting)).items())


_Question = tuple[Request, str, int, frozenset[GpuUuid], int]
"""What is asked for; the booked model and part of a GPU; the GPUs of other bookings; and the `id` of the nodes, which
are kept with the answer."""


def waiting_order(pod: PersonsPod) -> tuple[datetime, str, str]:
    return (pod.created, pod.holder.full_name, pod.holder.uid)


def cover_waiting(
    room: RevocableRoom, uses: Uses, pods: Iterable[PersonsPod], shared: SharedGpus | None = None
) -> dict[HolderId, Covered]:
    """By uid, of the pods that hold nothing. `uses` has what the others touch, and is filled further."""
    shared = shared or SharedGpus()
    covered: dict[HolderId, Covered] = {}
    in_order = sorted(pods, key=waiting_order)
    theirs = _uses_by_person(uses, {pod.person for pod in in_order})
    for room_now in (room, room.if_in_order):
        refused = set()  # what one of them does not get, a later one that asks alike does not get either
        for pod in in_order:
            nodes = pod.nodes_when_open if room_now.in_order else pod.nodes
            alike = (pod.person, pod.namespace, pod.request, pod.wanted_booking, id(nodes))
            if not nodes or pod.request is None or pod.holder.uid in covered or alike in refused:
                continue
            bookings = (use for use in theirs[pod.person] if _is_for(use.entitlement, pod, uses))
            tries = (_cover_waiting_pod(room_now, use, pod.request, nodes, shared) for use in bookings)
            if (found := next(filter(None, tries), None)) is not None:
                covered[pod.holder.uid] = found
            else:
                refused.add(alike)
    return covered


def _cover_waiting_pod(
    room: RevocableRoom, use: BookingUse, asked: Request, nodes: tuple[NodeName, ...], shared: SharedGpus
) -> Covered | None:
    entitlement = use.entitlement
    if entitlement.model and not asked.allows_model(entitlement.model):
        return None
    covered = Covered(entitlement)
    if asked.amount != WHOLE:
        if use.gpus and (there := _on_covered_gpus(room, use, covered.narrowed(asked), nodes, shared)):
            return Covered(entitlement, there)
        closed, used_up = shared.closed_to_further(entitlement), _used_up(room, use, asked)
        # The same object for thousands of pods, if it can be: an equal one of thousands of GPUs would be compared.
        covered = Covered(entitlement, not_on=closed | used_up if used_up else closed)
    if use.count + asked.gpus > entitlement.gpus or (entitlement.share_of > 1 and asked.amount == WHOLE):
        return None
    if not room.could_place(asked, nodes, covered):
        return None
    use.coming += asked.gpus
    return covered


def _used_up(room: RevocableRoom, use: BookingUse, request: Request) -> frozenset[GpuUuid]:
    """GPUs whose booked part has no room left for the request: there it would be more than was booked."""
    if use.entitlement.share_of == 1:
        return frozenset()
    entries = [entry for gpu in use.gpus if (entry := room.entry(gpu, request)) is not None]
    return frozenset(entry.gpu.uuid for entry in entries if not _is_within(use, entry, request))


def _is_within(use: BookingUse, entry: GpuEntry, request: Request) -> bool:
    return use.gpus[entry.gpu.uuid] + request.amount.on(entry.gpu.memory) <= use.limit_on(entry.gpu.memory)


def _on_covered_gpus(
    room: RevocableRoom, use: BookingUse, request: Request, nodes: Sequence[NodeName], shared: SharedGpus
) -> frozenset[GpuUuid]:
    """GPUs of one node that the booking covers already and that have room, or can be given some; empty: too few."""
    together: dict[tuple[NodeName, str], list[tuple[GpuUuid, int]]] = {}
    for gpu in sorted(use.gpus):
        entry = room.entry(gpu, request)
        if entry is None or shared.is_closed(gpu, use.entitlement) or entry.gpu.node not in nodes:
            continue
        need = request.amount.on(entry.gpu.memory)
        if _is_within(use, entry, request) and need <= room.on_gpu(entry) - use.promised.get(gpu, 0):
            # A GPU without a link is an island of its own.
            island = (entry.gpu.island or gpu) if request.needs_one_island else ""
            together.setdefault((entry.gpu.node, island), []).append((gpu, need))
    for _, found in sorted(together.items()):
        if len(found) >= request.gpus:
            for gpu, mib in found[: request.gpus]:
                use.gpus[gpu] += mib
                use.promised[gpu] = use.promised.get(gpu, 0) + mib
            return frozenset(gpu for gpu, _ in found)
    return frozenset()
