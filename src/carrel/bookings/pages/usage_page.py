"""Usage: who had what booked, how the hours were filled, and what of the free memory nobody can use."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.pages import heat_map, wording
from carrel.bookings.pages.heat_map import Warmth
from carrel.bookings.pages.layout import Shell
from carrel.bookings.pages.services import ClusterSight
from carrel.bookings.pages.usage_counter import HOUR
from carrel.bookings.people import Person
from carrel.bookings.records import BookingRecord, PersonUsage
from carrel.bookings.sign_in.identity import CurrentPerson
from carrel.ledger.ledger import Ledger

SPANS = (7, 14, 30, 90)
USUAL = 14
MOST_CARDS = 64
"""In one picture."""
SIZES = (4096, 8192, 16384, 24576, 40960, 81920)
"""Memory that people ask for, in MiB."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """How the free memory serves requests of one size."""

    size: str
    fitting: int
    """Cards on which such a request fits."""
    lost: int
    """Cards that have memory free, but too little of it."""
    lost_memory: int


class UsagePage:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._desk = shell.desk

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/usage", self.show, methods=["GET"], response_model=None)
        router.add_api_route("/usage.csv", self.table, methods=["GET"], response_model=None)

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        desk, now = self._desk, self._desk.now()
        days, start, end = self._span(request)
        uses = await desk.looking.usage(start, now)
        seen = _seen_by(person, uses)
        models = await desk.looking.availability(end.astimezone(desk.zone).date(), 1)
        stock = {each.stock.model: each.stock for each in models}
        rows = warmth(await desk.looking.within(start, now), stock, start, now)
        hours = sum(use.card_hours for use in uses)
        held = held_by_card(desk.sight, start, end) if desk.sight else []
        possible = sum(each.cards for each in stock.values()) * ((now - start) / HOUR)
        return self._shell.page(
            request,
            person,
            "usage.html",
            days=days,
            spans=SPANS,
            start=start,
            end=end,
            uses=seen,
            most=max((use.card_hours for use in seen), default=1.0) or 1.0,
            hours=hours,
            percent=100 * hours / possible if possible else 0.0,
            rows=rows,
            picture=heat_map.draw(rows, start, desk.zone),
            has_cluster=desk.sight is not None,
            held=held,
            held_picture=heat_map.draw(held, start, desk.zone),
            held_by=_held_by(desk.sight, person, start) if desk.sight else {},
            held_since=desk.sight.tally.since if desk.sight else None,
            fragments=fragments(desk.sight.ledger) if desk.sight else [],
        )

    async def table(self, request: Request, person: CurrentPerson) -> Response:
        (days, start, _), now = self._span(request), self._desk.now()
        text = as_csv(_seen_by(person, await self._desk.looking.usage(start, now)), start, now)
        headers = {"content-disposition": f'attachment; filename="carrel-usage-{days}-days.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    def _span(self, request: Request) -> tuple[int, datetime, datetime]:
        """Whole hours, the one that has begun too. What is booked for the rest of it is not counted yet."""
        text = request.query_params.get("days", "")
        days = int(text) if text in map(str, SPANS) else USUAL
        end = self._desk.now().replace(minute=0, second=0, microsecond=0) + HOUR
        return days, end - timedelta(days=days), end


def _seen_by(person: Person, uses: Iterable[PersonUsage]) -> list[PersonUsage]:
    """A lab admin sees everybody, others themselves, as by the API."""
    return [use for use in uses if person.is_lab_admin or use.user == person.email]


def _held_by(sight: ClusterSight, person: Person, start: datetime) -> Mapping[str, float]:
    held = sight.tally.by_user(start)
    return {user: hours for user, hours in held.items() if person.is_lab_admin or user == person.email}


def held_by_card(sight: ClusterSight, start: datetime, end: datetime) -> Sequence[Warmth]:
    """Of many cards, those that were held most."""
    cards = [card.gpu for name in sorted(sight.ledger.nodes) for card in sight.ledger.cards(name)]
    named = {gpu.uuid: f"{gpu.node} · {gpu.index}" for gpu in cards}
    rows = sight.tally.by_card(named, start, int((end - start) / HOUR))
    return sorted(rows, key=lambda row: -row.mean)[:MOST_CARDS] if len(rows) > MOST_CARDS else rows


def warmth(
    records: Iterable[BookingRecord], stock: Mapping[str, ModelCapacity], start: datetime, now: datetime
) -> Sequence[Warmth]:
    """Of each model and each hour until now, the part of its cards that was booked."""
    hours = int((now - start) / HOUR) + 1
    booked = {model: [0.0] * hours for model in stock}
    for record in records:
        row = booked.get(record.booking.model)
        if row is None:
            continue
        since = max((record.booking.start - start) / HOUR, 0.0)
        until = (min(record.booking.ends, now) - start) / HOUR
        for hour in range(int(since), min(int(until) + 1, hours)):
            row[hour] += record.booking.cards * max(min(until, hour + 1) - max(since, hour), 0.0)
    return [
        Warmth(wording.model(model), [min(part / max(stock[model].cards, 1), 1.0) for part in parts])
        for model, parts in booked.items()
    ]


def fragments(ledger: Ledger) -> list[Fragment]:
    """For each usual size, and for whole cards: where it fits, and what is free but too small."""
    usable = [name for name in ledger.nodes if (node := ledger.node(name)) and not node.unusable]
    cards = [card for name in usable for card in ledger.cards(name) if not (card.gpu.unusable or card.kept_for)]
    largest = max((card.gpu.memory for card in cards), default=0)
    found = []
    for size in (size for size in SIZES if size <= largest):
        lost = [card.free for card in cards if 0 < card.free < size]
        found.append(Fragment(wording.memory(size), sum(card.free >= size for card in cards), len(lost), sum(lost)))
    lost = [card.free for card in cards if card.shares and card.free > 0]
    whole = sum(not card.shares for card in cards)
    return [*found, Fragment("a whole card", whole, len(lost), sum(lost))] if cards else []


def as_csv(uses: Iterable[PersonUsage], start: datetime, end: datetime) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(["from", "until", "person", "model", "bookings", "card_hours"])
    for use in uses:
        row = [_safe(use.user), _safe(use.model), use.bookings, f"{use.card_hours:.2f}"]
        writer.writerow([start.isoformat(), end.isoformat(), *row])
    return text.getvalue()


def _safe(text: str) -> str:
    """A spreadsheet would run what begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
