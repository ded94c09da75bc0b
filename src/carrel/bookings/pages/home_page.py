"""Home: my booking and how long it lasts, my tier, my pods, when I may book next, and what is free."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.pages.booking_form import reason_for
from carrel.bookings.pages.layout import Shell
from carrel.bookings.pages.services import ClusterSight, tier_of
from carrel.bookings.people import Person, Scope
from carrel.bookings.records import Availability, BookingRequest, Preview, Query, State
from carrel.bookings.sign_in.identity import CurrentPerson, needs
from carrel.ledger.tiers import Tier

ENDS_SOON = timedelta(hours=24)
"""From then on a banner says so."""


@dataclass(frozen=True, slots=True)
class PodRow:
    name: str
    tier: str
    phase: str
    cards: str
    why_waits: str


@dataclass(frozen=True, slots=True)
class Offer:
    """When this person may have a card next, and why not sooner."""

    start: datetime | None
    model: str
    reason: str


class HomePage:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._desk = shell.desk

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/", self.show, methods=["GET"], response_model=None)
        router.add_api_route("/feed", self.make_feed, methods=["POST"], response_model=None)
        router.add_api_route("/feed/revoke", self.revoke_feed, methods=["POST"], response_model=None)

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person)

    async def make_feed(self, request: Request, person: CurrentPerson) -> Response:
        """The secret address is shown this once; making another revokes it."""
        needs(person, Scope.BOOK)
        response = await self._page(request, person, feed=await self._desk.booking.make_feed(person))
        response.headers["cache-control"] = "no-store"
        return response

    async def revoke_feed(self, request: Request, person: CurrentPerson) -> Response:
        needs(person, Scope.BOOK)
        await self._desk.booking.revoke_feed(person)
        return RedirectResponse("/?done=feed-revoked", 303)

    async def _page(self, request: Request, person: Person, feed: str = "") -> Response:
        looking, now = self._desk.looking, self._desk.now()
        mine = await looking.find(Query(user=person.email, states=frozenset({State.ACTIVE, State.PLANNED})))
        records = sorted(mine.records, key=lambda record: record.booking.start)
        running = next((record for record in records if record.state(now) is State.ACTIVE), None)
        today = now.astimezone(self._desk.zone).date()
        models = await looking.availability(today, 1)
        return self._shell.page(
            request,
            person,
            "home.html",
            running=running,
            planned=[record for record in records if record.state(now) is State.PLANNED],
            ends_soon=running is not None and running.booking.ends - now <= ENDS_SOON,
            tier=(await looking.person_tier(person.email)).tier,
            booked=Tier.BOOKED,
            models=models,
            offer=await self._offer(person, models),
            has_cluster=self._desk.sight is not None,
            pods=pod_rows(self._desk.sight, person.email) if self._desk.sight else [],
            feed=feed,
            is_feed_revoked=request.query_params.get("done") == "feed-revoked",
        )

    async def _offer(self, person: Person, models: tuple[Availability, ...]) -> Offer | None:
        """The first start of any model, for a booking of the shortest length."""
        best: Offer | None = None
        for each in models:
            wish = BookingRequest(each.stock.model, self._desk.rules.min_duration)
            answer = await self._desk.booking.preview(wish, person)
            start = answer.earliest_start if isinstance(answer, Preview) else None
            if best is None or (start is not None and (best.start is None or start < best.start)):
                best = Offer(start, each.stock.model, reason_for(answer))
        return best


def pod_rows(sight: ClusterSight, email: str) -> list[PodRow]:
    rows = []
    for pod in sight.pods_of(email):
        tier = tier_of(pod)
        cards = [sight.ledger.card(uuid) for uuid in sight.ledger.shares_of(pod.metadata.uid)]
        rows.append(
            PodRow(
                name=f"{pod.metadata.namespace}/{pod.metadata.name}",
                tier=tier.value if tier else "no tier",
                phase="Going" if pod.metadata.deletion_timestamp else pod.status.phase or "Pending",
                cards=", ".join(str(card.gpu) for card in cards if card),
                why_waits="" if pod.spec.node_name else sight.why_waits(pod),
            )
        )
    return rows
