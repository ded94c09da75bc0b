"""Pods without a booking, of which it is said how much work they lose, and who of them loses a GPU."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random

from carrel.ids import HolderId, PersonId, PodUid
from carrel.ledger import victims
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import Placement, WaitingPod
from carrel.ledger.refusals import Refusal
from carrel.ledger.victims import LONG_AGO, NEVER, OpportunisticPod, Opportunists, Revocation

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def an_opportunist(name: str, person: str, hours: float = 1, *, is_young: bool = False) -> OpportunisticPod:
    return OpportunisticPod(
        PodUid(f"uid-{name}"), PersonId(person), NOON - timedelta(hours=hours), NEVER if is_young else LONG_AGO
    )


def revoke(
    ledger: Ledger,
    booked: WaitingPod,
    pods: Iterable[OpportunisticPod],
    rng: Random | None = None,
    stuck: Mapping[HolderId, OpportunisticPod] | None = None,
) -> Placement | Revocation | Refusal:
    found = Opportunists({pod.uid: pod for pod in pods}, stuck or {})
    return victims.revoke(ledger, found, booked, NOON, rng)
