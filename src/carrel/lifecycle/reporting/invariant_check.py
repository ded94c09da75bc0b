"""The leader counts every minute whether an invariant is broken (`cluster.invariants`).

The count runs in a thread: on 5,000 nodes it takes a second, and the loop of the controller has other work meanwhile.
What it reads is collected before, on the loop: objects are replaced and never changed, so copies of lists are enough.
"""

import asyncio
import logging
import time
from collections import Counter

from carrel.cluster.invariants import Invariant, LastingViolations, Observed, Violation, violations
from carrel.cluster.state import ClusterState
from carrel.lifecycle.metrics import ControllerMetrics

log = logging.getLogger(__name__)

CHECK_S = 60.0
MOST_LOGGED = 20
"""Findings of one round that are named in the log."""


class InvariantCheck:
    def __init__(self, state: ClusterState, metrics: ControllerMetrics) -> None:
        self._state = state
        self._metrics = metrics
        self._lasting = LastingViolations()
        self._logged: set[tuple[Invariant, str]] = set()

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._lasting = LastingViolations()
        try:
            while True:
                try:
                    await self.round()
                except Exception as error:  # a count that fails must not end the reconcilers beside it
                    self._state.isolation.failed("invariants", "round", error)
                await asyncio.sleep(CHECK_S)
        finally:
            self._metrics.set_violations(Counter())

    async def round(self) -> list[Violation]:
        """What has lasted too long."""
        observed, began = observed_on(self._state), time.perf_counter()
        found = self._lasting.add(await asyncio.to_thread(violations, observed), observed.now)
        self._metrics.set_violations(Counter(each.invariant for each in found))
        self._metrics.invariants_checked(time.perf_counter() - began)
        self._log(found)
        return found

    def _log(self, found: list[Violation]) -> None:
        """Each finding once, as long as it lasts."""
        new = [each for each in found if (each.invariant, each.where) not in self._logged]
        self._logged = {(each.invariant, each.where) for each in found}
        for each in new[:MOST_LOGGED]:
            log.error("invariant_violated invariant=%s where=%r: %s", each.invariant.value, each.where, each.words)
        if len(new) > MOST_LOGGED:
            log.error("invariants_violated more=%d", len(new) - MOST_LOGGED)


def observed_on(state: ClusterState) -> Observed:
    """What the caches show at this moment."""
    return Observed(
        nodes=state.cluster_ledger.reported_nodes(),
        statuses={each.metadata.name: each for each in state.node_statuses.store},
        leases=[each.record for each in state.cluster_ledger.leases()],
        unreadable=state.cluster_ledger.unreadable_leases(),
        pods={pod.metadata.uid: pod for pod in state.pods.store},
        bookings={each.booking: each for each in state.covered_pods.bookings()},
        now=state.options.now(),
        resource_claims=state.holders.known_others(),
    )
