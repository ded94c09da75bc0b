"""How long a pod may stay after it was told that it loses its GPU.

An admin says it for a namespace; else pods of a hub have the time for notebooks, because a person works in them, and
all others the general one. The booked pod that needs the GPU waits for it, so it is bounded.
"""

import logging
import re
from dataclasses import dataclass
from datetime import timedelta

from carrel.dialects.carrel import REVOCATION_GRACE
from carrel.dialects.jupyter import is_of_a_hub
from carrel.kubernetes.objects.kinds import Namespace, Pod

log = logging.getLogger(__name__)

LONGEST = timedelta(hours=1)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
_TEXT = re.compile(r"([0-9]{1,6})([smh])", re.ASCII)


@dataclass(frozen=True, slots=True)
class RevocationGrace:
    general: timedelta = timedelta()
    notebooks: timedelta = timedelta()

    def of(self, pod: Pod, namespace: Namespace | None) -> timedelta:
        """A word of an admin that cannot be read counts for nothing, and is logged."""
        text = namespace.metadata.annotations.get(REVOCATION_GRACE, "") if namespace is not None else ""
        asked = read_grace(text)
        if text and asked is None:
            expected = "a whole number with s, m or h, such as 5m"
            log.warning(
                "revocation_grace_unreadable namespace=%s %s=%r expected=%r",
                pod.metadata.namespace,
                REVOCATION_GRACE,
                text[:80],
                expected,
            )
        if asked is None:
            asked = max(self.general, self.notebooks) if is_of_a_hub(pod) else self.general
        return min(asked, LONGEST)


def read_grace(text: str) -> timedelta | None:
    """None if it cannot be read."""
    match = _TEXT.fullmatch(text.strip())
    return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else None
