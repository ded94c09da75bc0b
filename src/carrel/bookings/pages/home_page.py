"""The home page: my booking and its remaining time, my tier, my pods, my next possible start, and the free GPUs."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.pages.booking_form import why_earliest
from carrel.bookings.pages.cluster_view import ClusterView
from carrel.bookings.pages.layout import PageRenderer
from carrel.bookings.people import Person, Scope
from carrel.bookings.records import Availability, BookingRequest, Preview, Query, State
from carrel.bookings.sign_in.authenticator import CurrentPerson, require_scope
from carrel.dialects.tier import tier_of
from carrel.ledger.tiers import Tier

ENDS_SOON = timedelta(hours=24)
"""So long before the end, a banner warns."""


@dataclass(frozen=True, slots=True)
class PodRow:
    name: str
    tier: str
    phase: str
    gpus: str
    why_waits: str


@dataclass(frozen=True, slots=True)
class EarliestStart:
    """When this person can book a GPU next, and why not earlier."""

    start: datetime | None
    model: str
    reason: str


class HomePage:
    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer
        self._context = renderer.context

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/", self.show, methods=["GET"], response_model=None)
        router.add_api_route("/feed", self.make_feed, methods=["POST"], response_model=None)
        router.add_api_route("/feed/revoke", self.revoke_feed, methods=["POST"], response_model=None)

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person)

    async def make_feed(self, request: Request, person: CurrentPerson) -> Response:
        """The secret address is shown only once. Creating another revokes it."""
        require_scope(person, Scope.BOOK)
        response = await self._page(request, person, feed=await self._context.commands.make_feed(person))
        response.headers["cache-control"] = "no-store"
        return response

    async def revoke_feed(self, request: Request, person: CurrentPerson) -> Response:
        require_scope(person, Scope.BOOK)
        await self._context.commands.revoke_feed(person)
        return RedirectResponse("/?done=feed-revoked", 303)

    async def _page(self, request: Request, person: Person, feed: str = "") -> Response:
        queries, now = self._context.queries, self._context.now()
        mine = await queries.find(Query(user=person.email, states=frozenset({State.ACTIVE, State.PLANNED})))
        records = sorted(mine.records, key=lambda record: record.booking.start)
        running = next((record for record in records if record.state(now) is State.ACTIVE), None)
        today = now.astimezone(self._context.zone).date()
        models = await queries.availability(today, 1)
        return self._renderer.page(
            request,
            person,
            "home.html",
            running=running,
            planned=[record for record in records if record.state(now) is State.PLANNED],
            ends_soon=running is not None and running.booking.ends - now <= ENDS_SOON,
            tier=(await queries.person_tier(person.email)).tier,
            booked=Tier.BOOKED,
            models=models,
            earliest=await self._earliest(person, models),
            has_cluster=self._context.cluster is not None,
            pods=pod_rows(self._context.cluster, person.email) if self._context.cluster else [],
            feed=feed,
            is_feed_revoked=request.query_params.get("done") == "feed-revoked",
        )

    async def _earliest(self, person: Person, models: tuple[Availability, ...]) -> EarliestStart | None:
        """The first start of any model, for a booking of the minimum length."""
        best: EarliestStart | None = None
        for each in models:
            wish = BookingRequest(each.stock.model, self._context.rules.min_duration)
            answer = await self._context.commands.preview(wish, person)
            start = answer.earliest_start if isinstance(answer, Preview) else None
            if best is None or (start is not None and (best.start is None or start < best.start)):
                best = EarliestStart(start, each.stock.model, why_earliest(answer))
        return best


def pod_rows(cluster: ClusterView, email: str) -> list[PodRow]:
    rows = []
    for pod in cluster.pods_of(email):
        tier = tier_of(pod)
        cards = [cluster.ledger.card(uuid) for uuid in cluster.ledger.shares_of(pod.metadata.uid)]
        rows.append(
            PodRow(
                name=f"{pod.metadata.namespace}/{pod.metadata.name}",
                tier=tier.value if tier else "no tier",
                phase="Terminating" if pod.metadata.deletion_timestamp else pod.status.phase or "Pending",
                gpus=", ".join(str(card.gpu) for card in cards if card),
                why_waits="" if pod.spec.node_name else cluster.why_waits(pod),
            )
        )
    return rows
