"""The metrics of the controller."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable

from prometheus_client import Counter, Gauge

from carrel.http.metrics import ComponentMetrics
from carrel.kubernetes.server_clock import ServerClock
from carrel.ledger.slots import ReservationState


class ControllerMetrics(ComponentMetrics):
    def __init__(
        self,
        is_leading: Callable[[], bool],
        over_use: Callable[[], int] = lambda: 0,
        clock: ServerClock | None = None,
    ) -> None:
        """`over_use`: the bookings that cover more GPUs than were booked, by what Leases record."""
        super().__init__()
        registry = self.registry
        overused = Gauge(
            "carrel_bookings_overused",
            "Bookings for which Leases record more GPUs than were booked; corrected within seconds.",
            registry=registry,
        )
        overused.set_function(lambda: float(over_use()))
        skew = Gauge(
            "carrel_clock_skew_seconds",
            "How far this machine's clock is ahead of the API server's, whose time counts; 0 up to 3 seconds.",
            registry=registry,
        )
        skew.set_function(lambda: clock.skew.total_seconds() if clock is not None else 0.0)
        leading = Gauge("carrel_leader", "1 on the replica that leads, 0 on the others.", registry=registry)
        leading.set_function(lambda: float(is_leading()))
        self.freed = Counter(
            "carrel_cards_freed", "Shares removed from Leases because their pods were gone.", registry=registry
        )
        self.claims = Counter("carrel_claim_statuses_written", "Changes of a GpuClaim's status.", registry=registry)
        self.events = Counter("carrel_events_told", "Events about pods.", ["reason"], registry=registry)
        self.revoked = Counter(
            "carrel_pods_revoked", "Pods without a booking whose GPU was revoked.", registry=registry
        )
        self.coverage = Counter(
            "carrel_coverage_corrections",
            "Pods told that a booking covers them, or no more.",
            ["way"],
            registry=registry,
        )
        self.handed_over = Counter("carrel_hand_overs_closed", "Hand-overs that ended.", ["how"], registry=registry)
        self._reservations = Gauge(
            "carrel_reservations", "Slots with a reservation, beside NVIDIA's plugin.", ["state"], registry=registry
        )

    def count_reservations(self, states: Iterable[ReservationState]) -> None:
        counted = Counts(states)
        for state in ReservationState:
            self._reservations.labels(state.value).set(counted[state])
