"""What the cluster's admin decides about the tiers, for everything in the controller that acts on them."""

import logging
import re
from dataclasses import dataclass
from datetime import timedelta

from carrel.dialects.carrel import REVOCATION_GRACE
from carrel.dialects.jupyter import is_of_a_hub
from carrel.dialects.options import LONGEST_GRACE_S
from carrel.dialects.tier import WhenFull
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.ledger.tiers import AtEnd

log = logging.getLogger(__name__)

LONGEST = timedelta(hours=1)
"""Between the announcement of a revocation and the end of the pod: the booked pod that needs the GPU waits for it."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
_TEXT = re.compile(r"([0-9]{1,6})([smh])", re.ASCII)


@dataclass(frozen=True, slots=True)
class EndLimits:
    """How long a pod may take to end, and how long a disruption budget may keep it: a booked pod waits for its GPU."""

    grace: timedelta = timedelta(seconds=LONGEST_GRACE_S)
    """Between the moment a pod is told to end and its end. The pod's own grace period could be a year."""
    budget_delay: timedelta = timedelta(minutes=10)
    """For how long a disruption budget may delay the end of a pod whose GPU is revoked."""


DEFAULT_END_LIMITS = EndLimits()


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
    """Like `grace`, for pods of a hub, because a person works in them; the longer of the two counts."""
    wait_before_cpu: timedelta = timedelta()
    """After so long a pod that waits goes on without a GPU, where a full cluster means CPU; zero: never."""
    when_full: WhenFull = WhenFull.DEFAULT
    limits: EndLimits = DEFAULT_END_LIMITS

    def grace_of(self, pod: Pod, namespace: Namespace | None) -> timedelta:
        """How long the pod may stay after it was told that it loses its GPU. An admin may say it for a namespace; what
        cannot be read of that counts for nothing, and is logged."""
        text = namespace.metadata.annotations.get(REVOCATION_GRACE, "") if namespace is not None else ""
        if match := _TEXT.fullmatch(text.strip()):
            return min(timedelta(**{_UNITS[match[2]]: int(match[1])}), LONGEST)
        if text:
            words = "revocation_grace_unreadable namespace=%s %s=%r expected=%r"
            expected = "a whole number with s, m or h, such as 5m"
            log.warning(words, pod.metadata.namespace, REVOCATION_GRACE, text[:80], expected)
        return min(max(self.grace, self.notebook_grace) if is_of_a_hub(pod) else self.grace, LONGEST)
