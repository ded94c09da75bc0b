"""Which tier a pod has, by what the webhook or MAIA's admission controller wrote on it."""

from carrel.dialects import maia
from carrel.dialects.carrel import BOOKED, OPPORTUNISTIC, TIER
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.tiers import Tier
from carrel.parsing.malformed import Malformed

_TIERS = {BOOKED: Tier.BOOKED, OPPORTUNISTIC: Tier.OPPORTUNISTIC}


def tier_of(pod: Pod) -> Tier | None:
    """None: nobody has decided; then it is neither a victim nor entitled to one.

    Where Carrel's own word is missing, MAIA's mark counts: who carries it may lose its card at any time.
    """
    said = pod.metadata.annotations.get(TIER)
    if said is not None:
        return _TIERS.get(said)
    try:
        is_marked = maia.read_terminate_at(pod) is maia.Revocable.ANY_TIME
    except Malformed:
        return None
    return Tier.OPPORTUNISTIC if is_marked else None


def is_opportunistic(pod: Pod) -> bool:
    return tier_of(pod) is Tier.OPPORTUNISTIC
