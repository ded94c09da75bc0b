"""What probes and Prometheus look at: base units, and no user's name in any label."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from carrel.ledger.slots import ReservationState


class Metrics:
    def __init__(self, is_leading: Callable[[], bool]) -> None:
        registry = self._registry = CollectorRegistry()
        leading = Gauge("carrel_leader", "1 on the replica that leads, 0 on the others.", registry=registry)
        leading.set_function(lambda: float(is_leading()))
        self.freed = Counter("carrel_cards_freed", "Shares taken off Leases: their pods were gone.", registry=registry)
        self.claims = Counter("carrel_claim_statuses_written", "Changes of a GpuClaim's status.", registry=registry)
        self.told = Counter("carrel_events_told", "Events about pods.", ["reason"], registry=registry)

        self.revoked = Counter(
            "carrel_pods_revoked", "Pods without a booking whose card was taken back.", registry=registry
        )
        self.handed_over = Counter(
            "carrel_hand_overs_closed", "Hand-overs that came to their end.", ["how"], registry=registry
        )

        self._reservations = Gauge(
            "carrel_reservations", "Slots with a reservation, beside NVIDIA's plugin.", ["state"], registry=registry
        )

    def see_reservations(self, states: Iterable[ReservationState]) -> None:
        counted = Counts(states)
        for state in ReservationState:
            self._reservations.labels(state.value).set(counted[state])

    def text(self) -> bytes:
        return generate_latest(self._registry)


def health_app(metrics: Metrics, is_ready: Callable[[], bool]) -> Starlette:
    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        if is_ready():
            return PlainTextResponse("ok")
        return PlainTextResponse("the ledger is being rebuilt from the cluster", status_code=503)

    async def numbers(_: Request) -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", numbers)])
