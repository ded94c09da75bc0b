"""What must hold of the function that decides which pods a booking covers, whatever bookings and pods there are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.ids import BookingId, GpuUuid, HolderId, NodeName, PersonId, PodUid
from carrel.ledger.coverage import (
    Covered,
    Entitlement,
    PersonsPod,
    RevocableRoom,
    SharedGpus,
    Uses,
    cover_holders,
    cover_waiting,
    uses_of,
)
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, place
from carrel.ledger.requests import Memory, Portion, Request
from carrel.ledger.shares import Coverage, Holder, Share
from tests.kit.gpus import N1, N2, a_gpu, whole

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
NAMES = (N1, N2)
NODES = tuple(
    Node(NodeName(name), tuple(a_gpu(name, index, 1000, model="XXY"[index]) for index in range(3))) for name in NAMES
)
GPUS = tuple(gpu.uuid for node in NODES for gpu in node.gpus)

minutes = st.integers(0, 5).map(lambda number: NOON + timedelta(minutes=number))
entitlements = st.lists(
    st.builds(
        Entitlement,
        booking=st.sampled_from(["b0", "b1", "b2"]),
        people=st.sampled_from([frozenset({"ada"}), frozenset({"ada", "bob"})]),
        model=st.sampled_from(["", "X", "X", "Y"]),
        gpus=st.integers(1, 4),
        start=st.just(NOON - timedelta(days=1)),
        ends=st.integers(1, 3).map(lambda days: NOON + timedelta(days=days)),
        share_of=st.sampled_from([1, 1, 1, 2]),
        namespace=st.sampled_from(["", "", "lab"]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda each: each.booking,
)
requests = st.one_of(
    st.builds(whole, st.integers(1, 2)),
    st.builds(whole, model=st.sampled_from(["X", "Y"])),
    st.builds(Request, st.integers(1, 2), st.sampled_from([Portion(Fraction(1, 2)), Memory(MiB(300))])),
)
records = st.none() | st.builds(Coverage, st.sampled_from(["b0", "b1", "b2", "ended"]), minutes)


@st.composite
def pods(draw: st.DrawFn) -> list[tuple[PersonsPod, list[Share]]]:
    """Some hold GPUs, some wait. What they hold may be more than a GPU has: Leases say what they say."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        uid = f"uid-{draw(st.integers(0, 9))}-{number}"
        holder = Holder(PodUid(uid), draw(st.sampled_from(["lab", "other"])), f"pod-{number}")
        held = draw(st.just(frozenset[str]()) | st.frozensets(st.sampled_from(GPUS), max_size=3))
        memory = draw(st.sampled_from([None, MiB(300), MiB(500)]))
        record = draw(records)
        shares = [Share(holder, GpuUuid(gpu), memory, coverage=record) for gpu in sorted(held)]
        pod = PersonsPod(
            holder=holder,
            person=PersonId(draw(st.sampled_from(["ada", "ada", "ada", "bob", "eve"]))),
            namespace=holder.namespace,
            created=draw(minutes),
            bound_at=draw(st.none() | minutes) if held else None,
            request=draw(requests),
            nodes=draw(st.sampled_from([NAMES, NAMES, NAMES[:1], ()])),
            wanted_booking=BookingId(draw(st.sampled_from(["", "", "b0", "b1"]))),
        )
        found.append((pod, shares))
    return found


Cluster = list[tuple[PersonsPod, list[Share]]]


def a_ledger(cluster: Cluster, *, is_n2_lost: bool = False) -> Ledger:
    ledger = Ledger(NODES)
    ledger.restore(share for _, shares in cluster for share in shares)
    if is_n2_lost:
        ledger.remove_node(N2)
    return ledger


def work_out(
    ledger: Ledger, bookings: list[Entitlement], pods: list[PersonsPod]
) -> tuple[dict[HolderId, Covered], Uses]:
    uses = uses_of(bookings)
    holding = cover_holders(ledger, uses, pods)
    shared = SharedGpus()
    for uid, covered in holding.items():
        parts = [gpu for gpu, share in ledger.shares_of(uid).items() if share.memory is not None]
        shared.add(uid, covered.entitlement, parts)
    room = RevocableRoom(ledger, lambda uid: uid not in holding)
    waiting = [pod for pod in pods if not ledger.shares_of(pod.holder.uid)]
    return holding | cover_waiting(room, uses, waiting, shared), uses


def touched(ledger: Ledger, covered: dict[HolderId, Covered], booking: str) -> set[str]:
    mine = [uid for uid, by in covered.items() if by.entitlement.booking == booking]
    return {gpu for uid in mine for gpu in ledger.shares_of(uid)}


@settings(max_examples=75, deadline=None)
@given(entitlements, pods(), st.booleans())
def test_covered_gpus_are_never_more_than_booked(
    bookings: list[Entitlement], cluster: Cluster, is_n2_lost: bool
) -> None:
    ledger = a_ledger(cluster, is_n2_lost=is_n2_lost)
    covered, uses = work_out(ledger, bookings, [pod for pod, _ in cluster])
    for booking in bookings:
        assert len(touched(ledger, covered, booking.booking)) <= booking.gpus
        assert uses[booking.booking].count <= booking.gpus


@settings(max_examples=75, deadline=None)
@given(entitlements, pods(), st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_does_not_matter(bookings: list[Entitlement], cluster: Cluster, random: object) -> None:
    first, _ = work_out(a_ledger(cluster), bookings, [pod for pod, _ in cluster])
    random.shuffle(cluster)  # type: ignore[attr-defined] # a Random
    random.shuffle(bookings)  # type: ignore[attr-defined] # a Random
    again, _ = work_out(a_ledger(cluster), bookings, [pod for pod, _ in cluster])
    assert again == first


@settings(max_examples=75, deadline=None)
@given(entitlements, pods())
def test_a_pod_is_covered_only_by_a_booking_that_is_for_it(bookings: list[Entitlement], cluster: Cluster) -> None:
    ledger = a_ledger(cluster)
    by_uid = {pod.holder.uid: pod for pod, _ in cluster}
    covered, _ = work_out(ledger, bookings, list(by_uid.values()))
    for uid, by in covered.items():
        pod, entitlement = by_uid[PodUid(uid)], by.entitlement
        assert pod.person in entitlement.people
        assert entitlement.namespace in ("", pod.namespace)
        entries = [ledger.entry(gpu) for gpu in ledger.shares_of(PodUid(uid))]
        assert all(entitlement.model in ("", entry.gpu.model) for entry in entries if entry is not None)
        assert ledger.shares_of(PodUid(uid)) or pod.request is not None


@settings(max_examples=75, deadline=None)
@given(entitlements, pods())
def test_of_the_holders_nobody_is_left_out_who_would_fit_with_those_before(
    bookings: list[Entitlement], cluster: Cluster
) -> None:
    """With one booking, said as plainly as possible."""
    entitlement = replace(bookings[0], share_of=1)
    ledger = a_ledger(cluster)
    covered, _ = work_out(ledger, [entitlement], [pod for pod, _ in cluster])
    mine = [
        (pod, shares)
        for pod, shares in cluster
        if shares
        and entitlement.is_for(pod.person, pod.namespace)
        and all(entitlement.model in ("", _model(share.gpu)) for share in shares)
    ]

    def order(each: tuple[PersonsPod, list[Share]]) -> tuple[object, ...]:
        pod, record = each[0], each[1][0].coverage
        if record is not None and record.booking == entitlement.booking:
            return (0, record.since, pod.holder.uid)
        by_age = (pod.created, pod.holder.full_name, pod.holder.uid)
        return (1, pod.bound_at is None, pod.bound_at or pod.created, *by_age)

    gpus: set[str] = set()
    expected = set()
    for pod, shares in sorted(mine, key=order):
        together = gpus | {share.gpu for share in shares}
        if len(together) <= entitlement.gpus:
            gpus = together
            expected.add(pod.holder.uid)
    assert {uid for uid in covered if ledger.shares_of(PodUid(uid))} == expected


def _model(gpu: str) -> str:
    return "XXY"[int(gpu[-1])]


@settings(max_examples=75, deadline=None)
@given(entitlements, pods())
def test_of_the_pods_that_wait_nobody_is_left_out_who_would_be_covered_with_those_before(
    bookings: list[Entitlement], cluster: Cluster
) -> None:
    ledger = a_ledger(cluster)
    everybody = [pod for pod, _ in cluster]
    covered, _ = work_out(ledger, bookings, everybody)
    holding = [pod for pod, shares in cluster if shares]
    waiting = sorted(
        (pod for pod, shares in cluster if not shares),
        key=lambda pod: (pod.created, pod.holder.full_name, pod.holder.uid),
    )
    for number, pod in enumerate(waiting):
        alone, _ = work_out(ledger, bookings, [*holding, *waiting[: number + 1]])
        assert alone.get(pod.holder.uid) == covered.get(pod.holder.uid), "later pods take nothing from earlier ones"


@settings(max_examples=75, deadline=None)
@given(entitlements, pods(), pods(), st.data())
def test_who_is_covered_and_recorded_stays_covered_whoever_comes_or_goes(
    bookings: list[Entitlement], cluster: Cluster, newcomers: Cluster, data: st.DataObject
) -> None:
    """The elected controller records what is true; from then on others may come and go, bind and be recorded."""
    ledger = a_ledger(cluster)
    everybody = [pod for pod, _ in cluster]
    true, _ = work_out(ledger, bookings, everybody)
    recorded: Cluster = [
        (pod, [replace(share, coverage=_record(true.get(pod.holder.uid), NOON)) for share in shares])
        for pod, shares in cluster
    ]
    kept = [each for each in recorded if each[0].holder.uid in true or data.draw(st.booleans())]
    # Newcomers are not recorded yet, or for a booking of theirs later than the others; their uids are new.
    others: Cluster = []
    for pod, shares in newcomers:
        holder = Holder(PodUid(f"new-{pod.holder.uid}"), pod.holder.namespace, f"new-{pod.holder.name}")
        later = data.draw(st.none() | st.just(Coverage(BookingId("b0"), NOON + timedelta(hours=1))))
        others.append(
            (replace(pod, holder=holder), [replace(share, holder=holder, coverage=later) for share in shares])
        )
    after = kept + others
    now, _ = work_out(a_ledger(after), bookings, [pod for pod, _ in after])
    for pod, shares in kept:
        uid = pod.holder.uid
        if shares and uid in true:
            assert uid in now
            assert now[uid].entitlement == true[uid].entitlement


def _record(covered: Covered | None, since: datetime) -> Coverage | None:
    return Coverage(covered.entitlement.booking, since) if covered is not None else None


@settings(max_examples=75, deadline=None)
@given(entitlements, pods(), requests, requests, st.booleans())
def test_two_replicas_that_record_a_pod_each_for_the_last_gpu_end_with_one_of_them(
    bookings: list[Entitlement], cluster: Cluster, first: Request, second: Request, same_instant: bool
) -> None:
    """Each replica sees its own pod only, is right, and writes it down. Then everybody sees both."""
    instants = (NOON + timedelta(hours=2), NOON + timedelta(hours=2 if same_instant else 3))
    written: Cluster = list(cluster)
    by: dict[str, str] = {}
    for name, request, now in zip("ab", (first, second), instants, strict=True):
        holder = Holder(PodUid(f"racing-{name}"), "lab", name)
        pod = PersonsPod(holder, PersonId("ada"), "lab", now, None, request, NAMES)
        ledger = a_ledger(cluster)
        true, _ = work_out(ledger, bookings, [*(pod for pod, _ in cluster), pod])
        covered = true.get(holder.uid)
        placed = covered and next(
            (
                found
                for node in (NAMES if name == "a" else NAMES[::-1])
                if isinstance(found := place(ledger, covered.narrowed(request), NodeName(node)), Placement)
            ),
            None,
        )
        if covered is None or not placed:
            return
        by[holder.uid] = covered.entitlement.booking
        shares = replace(placed, coverage=_record(covered, now)).shares(holder)
        written.append((replace(pod, bound_at=now), list(shares)))
    answers = [
        work_out(a_ledger(seen), bookings, [pod for pod, _ in seen])[0] for seen in (written, list(reversed(written)))
    ]
    assert answers[0] == answers[1]
    for booking in bookings:
        assert len(touched(a_ledger(written), answers[0], booking.booking)) <= booking.gpus
    assert by.keys() & answers[0].keys(), "one of the two at least"


@settings(max_examples=75, deadline=None)
@given(entitlements, pods())
def test_a_waiting_pod_that_is_covered_is_covered_also_when_it_is_placed_as_it_was_told(
    bookings: list[Entitlement], cluster: Cluster
) -> None:
    """All opportunistic pods have gone meanwhile; every covered pod is bound where its narrowed request puts it."""
    ledger = a_ledger(cluster)
    everybody = [pod for pod, _ in cluster]
    covered, _ = work_out(ledger, bookings, everybody)
    waiting = [pod for pod, shares in cluster if not shares and pod.holder.uid in covered]
    if not waiting:
        return
    for pod, shares in cluster:
        if shares and pod.holder.uid not in covered:
            ledger.forget(pod.holder.uid)
    left = [pod for pod in everybody if pod.holder.uid in covered or not ledger.shares_of(pod.holder.uid)]
    pod, request = waiting[0], waiting[0].request
    assert request is not None
    told = covered[pod.holder.uid]
    found = [
        placed for node in pod.nodes if isinstance(placed := place(ledger, told.narrowed(request), node), Placement)
    ]
    assert found, "it could be placed were all opportunistic pods gone"
    for placed in found:
        with ledger.what_if():
            for share in replace(placed, coverage=_record(told, NOON + timedelta(hours=1))).shares(pod.holder):
                ledger.hold(share)
            after, _ = work_out(ledger, bookings, left)
        assert after[pod.holder.uid].entitlement == told.entitlement
