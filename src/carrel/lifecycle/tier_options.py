"""What the cluster's admin decides about the tiers, for everything in the controller that acts on them."""

from dataclasses import dataclass
from datetime import timedelta

from carrel.dialects.when_full import WhenFull
from carrel.ledger.tiers import AtEnd
from carrel.lifecycle.freeing.end_limits import DEFAULT_END_LIMITS, EndLimits


@dataclass(frozen=True, slots=True)
class TierOptions:
    schedulers: frozenset[str]
    """The schedulers that ask Carrel's extender."""
    grace: timedelta = timedelta()
    """Between the announcement of a revocation and the end of the pod."""
    random_victims: bool = False
    """Among the fewest, instead of fairly (`victims`); always the same for one booked pod."""
    at_end: AtEnd = AtEnd.CPU
    """What happens to a pod whose booking has come to its end."""
    minimum_time: timedelta = timedelta()
    """A pod that has run for less loses its GPU only if nothing else will do."""
    notebook_grace: timedelta = timedelta()
    """Like `grace`, for pods of a hub; the longer of the two counts."""
    wait_before_cpu: timedelta = timedelta()
    """After so long a pod that waits goes on without a GPU, where a full cluster means CPU; zero: never."""
    when_full: WhenFull = WhenFull.DEFAULT
    limits: EndLimits = DEFAULT_END_LIMITS
    """How long a pod may take to end."""
