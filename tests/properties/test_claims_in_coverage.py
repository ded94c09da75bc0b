"""A pod that holds its GPUs by claims is covered exactly as if it held them itself."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from carrel.ids import BookingId, GpuUuid, PersonId, PodUid, ResourceClaimUid
from carrel.ledger.coverage import Entitlement, PersonsPod, cover_holders, uses_of
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.shares import Coverage, Holder, HolderKind, Share
from tests.kit.gpus import N1

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
PEOPLE, GPUS = ("ada", "eve"), 5

amounts = st.sampled_from([None, 1000, 3000])
held = st.dictionaries(st.integers(0, GPUS - 1), amounts, min_size=1, max_size=3)
pods = st.lists(st.tuples(st.sampled_from(PEOPLE), held, st.sampled_from(["", "b0", "b1"])), max_size=5)
bookings = st.lists(st.tuples(st.sampled_from(PEOPLE), st.integers(1, 3), st.sampled_from([1, 4])), max_size=2)


def by_claims(holds: dict[int, int | None], pod: int) -> dict[str, dict[int, int | None]]:
    """The same, with a claim for each GPU; a part of a GPU is divided into two claims."""
    parts: dict[str, dict[int, int | None]] = {}
    for gpu, memory in holds.items():
        if memory is None:
            parts[f"claim-{pod}-{gpu}"] = {gpu: None}
        else:
            parts[f"claim-{pod}-{gpu}-a"], parts[f"claim-{pod}-{gpu}-b"] = {gpu: 400}, {gpu: memory - 400}
    return parts


def covered(
    found: list[tuple[str, dict[int, int | None], str]], entitled: list[tuple[str, int, int]], *, claims: bool
) -> dict[str, str]:
    """Pod → the booking that covers it."""
    gpus = tuple(Gpu(GpuUuid(f"GPU-{n}"), N1, n, "A100", MiB(16_000)) for n in range(GPUS))
    ledger, persons = Ledger([Node(N1, gpus)]), []
    shares: dict[str, list[Share]] = {}
    for number, (person, holds, booking) in enumerate(found):
        record = Coverage(BookingId(booking), NOON - timedelta(minutes=number)) if booking else None
        own = {f"pod-{number}": holds}
        for uid, part in (by_claims(holds, number) if claims else own).items():
            kind = HolderKind.CLAIM if claims else HolderKind.POD
            for gpu, memory in part.items():
                held_by = Holder(PodUid(uid), "lab", uid, kind)
                memory_held = None if memory is None else MiB(memory)
                shares.setdefault(f"GPU-{gpu}", []).append(
                    Share(held_by, GpuUuid(f"GPU-{gpu}"), memory_held, coverage=record)
                )
        pod = PersonsPod(
            Holder(PodUid(f"pod-{number}")), PersonId(person), "lab", NOON, NOON + timedelta(minutes=number), None
        )
        persons.append(replace(pod, others=tuple(map(ResourceClaimUid, by_claims(holds, number)))) if claims else pod)
    for uuid, there in shares.items():
        ledger.set_entry(GpuUuid(uuid), there, None)  # as the cluster says it, also where that is too much
    uses = uses_of(
        Entitlement(
            BookingId(f"b{n}"),
            frozenset({PersonId(person)}),
            "",
            count,
            NOON - timedelta(days=1),
            NOON + timedelta(days=1),
            share,
        )
        for n, (person, count, share) in enumerate(entitled)
    )
    return {uid: each.entitlement.booking for uid, each in cover_holders(ledger, uses, persons).items()}


@given(pods, bookings)
def test_it_does_not_matter_to_a_booking_whether_gpus_are_held_by_claims(
    found: list[tuple[str, dict[int, int | None], str]], entitled: list[tuple[str, int, int]]
) -> None:
    assert covered(found, entitled, claims=True) == covered(found, entitled, claims=False)
