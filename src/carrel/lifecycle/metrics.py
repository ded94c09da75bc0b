"""The metrics of the controller."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from prometheus_client import Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from carrel.cluster.invariants import Invariant
from carrel.cluster.waiting.waiting_reason import WaitCause
from carrel.dialects.hand_over_record import Why
from carrel.http.metrics import ComponentMetrics
from carrel.ids import HolderId
from carrel.kubernetes.server_clock import ServerClock
from carrel.ledger.slots import ReservationState
from carrel.ledger.tiers import Tier
from carrel.lifecycle.handing_over.hand_over import HandOverResult

NO_TIER = "none"


class WaitingPods:
    """Which pods wait, and why, as the leader last found."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str]] = {}  # uid → cause and tier

    def note(self, uid: HolderId, cause: WaitCause, tier: Tier | None) -> None:
        self._found[uid] = (cause.value, tier.value if tier is not None else NO_TIER)

    def forget(self, uid: HolderId) -> None:
        self._found.pop(uid, None)

    def clear(self) -> None:
        """This process does not lead any more."""
        self._found.clear()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """By cause and tier: all that there are, also those that no pod has now."""
        tiers = [*(tier.value for tier in Tier), NO_TIER]
        none = {(cause.value, tier): 0 for cause in WaitCause for tier in tiers}
        return {**none, **Counts(self._found.values())}


class ControllerMetrics(ComponentMetrics):
    def __init__(self, is_leading: Callable[[], bool], clock: ServerClock | None = None) -> None:
        super().__init__()
        registry = self.registry
        skew = Gauge(
            "carrel_clock_skew_seconds",
            "How far this machine's clock is ahead of the API server's, whose time counts; 0 up to 3 seconds.",
            registry=registry,
        )
        skew.set_function(lambda: clock.skew.total_seconds() if clock is not None else 0.0)
        leading = Gauge("carrel_leader", "1 on the replica that leads, 0 on the others.", registry=registry)
        leading.set_function(lambda: float(is_leading()))
        self.freed = Counter(
            "carrel_shares_freed", "Shares removed from Leases because their pods were gone.", registry=registry
        )
        self._configuration_refused = Gauge(
            "carrel_configuration_refused",
            "1 while the configuration that is given is not in force, because of a mistake in it.",
            registry=registry,
        )
        self._agents = Gauge(
            "carrel_agents",
            "Nodes whose agent reports their GPUs, and those whose agent is silent: they take no new pods.",
            ["state"],
            registry=registry,
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
        self.expired = Counter(
            "carrel_pods_expired", "Pods whose end has begun because their booking was over.", registry=registry
        )
        self._violations = Gauge(
            "carrel_invariant_violations",
            "Things found in the cluster that must never be, counted every minute; the log names them.",
            ["invariant"],
            registry=registry,
        )
        self._checked = Gauge(
            "carrel_invariant_check_duration_seconds", "Time that the last such count took.", registry=registry
        )
        self._checked_at = Gauge(
            "carrel_invariant_check_timestamp_seconds", "When the last such count ended.", registry=registry
        )
        self.set_violations(Counts())
        self._reservations = Gauge(
            "carrel_reservations", "Slots with a reservation, beside NVIDIA's plugin.", ["state"], registry=registry
        )

        self.waiting_pods = WaitingPods()
        self.read_on_scrape(self._of_waiting_pods)

    def set_configuration_refused(self, is_refused: bool) -> None:
        self._configuration_refused.set(is_refused)

    def show_agents(self, is_silent: Callable[[], Sequence[bool]]) -> None:
        """`is_silent`: of each agent, whether it is."""
        self._agents.labels("reporting").set_function(lambda: float(is_silent().count(False)))
        self._agents.labels("silent").set_function(lambda: float(is_silent().count(True)))

    def show_hand_overs(self, closed: Mapping[tuple[Why, HandOverResult], int]) -> None:
        self.read_on_scrape(lambda: [_hand_overs(closed)])

    def set_violations(self, found: Mapping[Invariant, int]) -> None:
        for invariant in Invariant:
            self._violations.labels(invariant.value).set(found.get(invariant, 0))

    def invariants_checked(self, seconds: float) -> None:
        self._checked.set(seconds)
        self._checked_at.set_to_current_time()

    def _of_waiting_pods(self) -> Iterable[Metric]:
        gauge = GaugeMetricFamily(
            "carrel_waiting_pods",
            "Pods that wait for a GPU, by why they wait and by tier, on the replica that leads.",
            labels=["reason", "tier"],
        )
        for labels, count in self.waiting_pods.counts().items():
            gauge.add_metric(labels, count)
        yield gauge

    def count_reservations(self, states: Iterable[ReservationState]) -> None:
        counted = Counts(states)
        for state in ReservationState:
            self._reservations.labels(state.value).set(counted[state])


def _hand_overs(closed: Mapping[tuple[Why, HandOverResult], int]) -> Metric:
    metric = CounterMetricFamily(
        "carrel_hand_overs_closed",
        "Hand-overs that ended: why the pod had to give its GPU up, and what became of it.",
        labels=["why", "outcome"],
    )
    for why, result in product(Why, HandOverResult):
        metric.add_metric([why.value, result.name.lower()], closed.get((why, result), 0))
    return metric
