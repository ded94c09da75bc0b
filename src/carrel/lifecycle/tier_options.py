"""What the cluster's admin decides about the tiers, for everything in the controller that acts on them."""

import logging
import re
from dataclasses import dataclass
from datetime import timedelta

from carrel.configuration.schema import Configuration, Victims
from carrel.dialects.carrel import REVOCATION_GRACE
from carrel.dialects.jupyter import is_of_a_hub
from carrel.dialects.options import LONGEST_GRACE_S, WhenFull
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.ledger.tiers import AtEnd

log = logging.getLogger(__name__)

LONGEST = timedelta(hours=1)
"""Between the announcement of a revocation and the end of the pod: the booked pod that needs the GPU waits for it."""
LONGEST_GRACE = timedelta(seconds=LONGEST_GRACE_S)
"""Unless the configuration says another. The pod's own grace period could be a year."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
_TEXT = re.compile(r"([0-9]{1,6})([smh])", re.ASCII)


@dataclass(slots=True)
class TierOptions:
    """Changes while the controller runs, with the configuration."""

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
    longest_grace: timedelta = LONGEST_GRACE
    """Between the moment a pod is told to end and its end: a booked pod waits for its GPU."""

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


def tier_options(of: Configuration) -> TierOptions:
    """Return what the configuration says about the tiers."""
    tiers = of.tiers
    return TierOptions(
        schedulers=frozenset(of.pods.schedulers),
        grace=tiers.revocation_grace,
        random_victims=tiers.victims is Victims.RANDOM,
        at_end=tiers.at_end,
        minimum_time=tiers.minimum_time,
        notebook_grace=tiers.notebook_grace,
        wait_before_cpu=tiers.wait_before_cpu,
        when_full=tiers.when_full,
        longest_grace=of.pods.longest_grace,
    )
