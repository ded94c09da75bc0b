"""The home page: my bookings, what they cover, my pods, my next possible start, and the free GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from carrel.bookings.cluster_view import pod_rows
from carrel.bookings.notifications.messages import ends_soon
from carrel.bookings.pages.forms import why_earliest
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.pages.recent_losses import recent_losses
from carrel.bookings.people import Person, Scope
from carrel.bookings.records import Availability, BookingRecord, BookingRequest, Preview, Query, State
from carrel.bookings.rules import Booking
from carrel.bookings.sign_in.authenticator import CurrentPerson, require_scope
from carrel.cluster.coverage.coverage_words import BookingInUse
from carrel.configuration.schema import Victims
from carrel.ids import PersonId


@dataclass(frozen=True, slots=True)
class RunningBooking:
    """A booking of the person, or of a group of theirs, that runs now."""

    booking: Booking
    record: BookingRecord | None = None
    """None: it is a group's, and was made by somebody else."""
    use: BookingInUse | None = None
    """None: there is no cluster, or it does not know the booking yet."""

    def ends_soon(self, now: datetime) -> bool:
        """Whether a banner warns, as messages do."""
        return ends_soon(self.booking.start, self.booking.ends, now)


@dataclass(frozen=True, slots=True)
class EarliestStart:
    """When this person can book a GPU next, and why not earlier."""

    start: datetime | None
    model: str
    reason: str


class HomePage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /": self.show,
            "POST /feed": self.make_feed,
            "POST /feed/revoke": self.revoke_feed,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        return await self._page(request, person)

    async def make_feed(self, request: Request, person: CurrentPerson) -> Response:
        """The secret address is shown only once. Creating another revokes it."""
        require_scope(person, Scope.BOOK)
        secret = await self._service.commands.make_feed(person)
        address = f"{self._service.authenticator.options.url_for(request)}/api/v1/feeds/{secret}.ics"
        response = await self._page(request, person, feed=address)
        response.headers["cache-control"] = "no-store"
        return response

    async def revoke_feed(self, request: Request, person: CurrentPerson) -> Response:
        require_scope(person, Scope.BOOK)
        await self._service.commands.revoke_feed(person)
        return RedirectResponse("/?done=feed-revoked", 303)

    async def _page(self, request: Request, person: Person, feed: str = "") -> Response:
        queries, now = self._queries, self._queries.now()
        mine = await queries.find(Query(user=person.email, states=frozenset({State.ACTIVE, State.PLANNED})))
        records = sorted(mine.records, key=lambda record: record.booking.start)
        running = self._running([record for record in records if record.state(now) is State.ACTIVE], person)
        pods = pod_rows(self._service.cluster_view, person.email, self._renderer.coverage_words)
        models = await queries.availability(queries.today(), 1)
        return self._renderer.page(
            request,
            person,
            "home.html",
            running=running,
            planned=[record for record in records if record.state(now) is State.PLANNED],
            ends_soon=[each for each in running if each.ends_soon(now)],
            used=sum(each.use.used for each in running if each.use),
            booked=sum(each.booking.gpus for each in running),
            is_use_known=any(each.use for each in running),
            beyond=[pod.name for pod in pods if pod.is_beyond],
            models=models,
            earliest=None if self._service.elsewhere else await self._earliest(person, models),
            has_cluster=self._service.cluster_view is not None,
            pods=pods,
            losses=await recent_losses(queries, self._service.cluster_view, person.email),
            by_chance=self._service.configuration.current.value.tiers.victims is Victims.RANDOM,
            is_new=not (running or records or pods) and not await self._has_booked(person),
            feed=feed,
            is_feed_revoked=request.query_params.get("done") == "feed-revoked",
        )

    async def _has_booked(self, person: Person) -> bool:
        return bool((await self._queries.find(Query(user=person.email, limit=1))).records)

    def _running(self, own: Sequence[BookingRecord], person: Person) -> list[RunningBooking]:
        """The person's own bookings, then those of their groups; of each kind the one that ends first comes first."""
        if (cluster := self._service.cluster_view) is None:
            return [RunningBooking(record.booking, record) for record in own]
        coverage = cluster.coverage
        found = [RunningBooking(each.booking, each, coverage.use_of(each.booking.id)) for each in own]
        known = {each.booking.id for each in found}
        for right in cluster.state.covered_pods.running_for(PersonId(person.email)):
            if right.booking not in known:
                is_share = right.share_of > 1
                what = (right.booking, "", right.model, right.start, right.ends, right.gpus)
                booking = Booking(*what, share=is_share, group=right.group)
                found.append(RunningBooking(booking, None, coverage.use_of(right.booking)))
        return sorted(found, key=lambda each: (each.record is None, each.booking.ends, each.booking.id))

    async def _earliest(self, person: Person, models: tuple[Availability, ...]) -> EarliestStart | None:
        """The first start of any model, for a booking of the minimum length."""
        best: EarliestStart | None = None
        for each in models:
            wanted = BookingRequest(each.stock.model, self._queries.rules.min_duration)
            answer = await self._service.commands.preview(wanted, person)
            start = answer.earliest_start if isinstance(answer, Preview) else None
            if best is None or (start is not None and (best.start is None or start < best.start)):
                best = EarliestStart(start, each.stock.model, why_earliest(answer))
        return best
