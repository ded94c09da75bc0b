"""The usage page: who booked what, how many hours were booked and held, and which free memory is too small to use."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response

from carrel.bookings import wording
from carrel.bookings.capacity import ModelCapacity, booked_gpus
from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.pages import heat_map
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.people import Person
from carrel.bookings.records import BookingRecord, PersonUsage
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.bookings.usage_counter import HOUR, HeldHours, HourlyUsage
from carrel.ids import GpuUuid
from carrel.ledger.gpus import memory_text
from carrel.ledger.ledger import Ledger
from carrel.parsing.printable import spreadsheet_text

PERIODS = (7, 14, 30, 90)
"""In days."""
USUAL_PERIOD = 14
MAX_GPUS = 64
"""In one picture."""
SIZES = (4096, 8192, 16384, 24576, 40960, 81920)
"""Usual request sizes, in MiB."""


@dataclass(frozen=True, slots=True)
class FragmentationRow:
    """On how many GPUs a request of one size fits."""

    size: str
    fitting: int
    """GPUs on which the request fits."""
    lost: int
    """GPUs with free memory, but less than the request needs."""
    lost_memory: int


class UsagePage(Page):
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /usage": self.show,
            "GET /usage.csv": self.table,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        queries, now, cluster = self._queries, self._queries.now(), self._service.cluster_view
        days, start, end = self._period(request)
        uses = await queries.usage(start, now)
        visible = [use for use in uses if use.is_seen_by(person)]
        models = await queries.availability(end.astimezone(queries.zone).date(), 1)
        stock = {each.stock.model: each.stock for each in models}
        rows = booked_by_model(await queries.within(start, now), stock, start, now, queries.rules.shares_per_gpu)
        hours = sum(use.gpu_hours for use in uses)
        held = held_by_gpu(cluster, start, end) if cluster else []
        possible = sum(each.gpus for each in stock.values()) * ((now - start) / HOUR)
        return self._renderer.page(
            request,
            person,
            "usage.html",
            days=days,
            periods=PERIODS,
            start=start,
            end=end,
            uses=visible,
            most=max((use.gpu_hours for use in visible), default=1.0) or 1.0,
            hours=hours,
            percent=100 * hours / possible if possible else 0.0,
            rows=rows,
            picture=heat_map.draw(rows, start, queries.zone),
            has_cluster=cluster is not None,
            held=held,
            held_picture=heat_map.draw(held, start, queries.zone),
            held_by=_held_by(cluster, person, start) if cluster else {},
            held_since=cluster.usage.since if cluster else None,
            fragmentation=fragmentation(cluster.ledger) if cluster else [],
        )

    async def table(self, request: Request, person: CurrentPerson) -> Response:
        (days, start, _), now = self._period(request), self._queries.now()
        uses: Sequence[PersonUsage] = await self._queries.usage(start, now)
        if self._service.cluster_view is not None:
            uses = self._service.cluster_view.with_held(uses, start, now)
        text = as_csv((use for use in uses if use.is_seen_by(person)), start, now)
        headers = {"content-disposition": f'attachment; filename="carrel-usage-{days}-days.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    def _period(self, request: Request) -> tuple[int, datetime, datetime]:
        """Whole hours, including the current one. Bookings count only until now."""
        text = request.query_params.get("days", "")
        days = int(text) if text in map(str, PERIODS) else USUAL_PERIOD
        end = self._queries.now().replace(minute=0, second=0, microsecond=0) + HOUR
        return days, end - timedelta(days=days), end


def _held_by(cluster: ClusterView, person: Person, start: datetime) -> Mapping[str, HeldHours]:
    held = cluster.usage.by_user(start)
    return {user: hours for user, hours in held.items() if person.is_lab_admin or user == person.email}


def held_by_gpu(cluster: ClusterView, start: datetime, end: datetime) -> Sequence[HourlyUsage]:
    """If there are too many GPUs, those that were held most."""
    named: dict[GpuUuid, str] = {}
    for name in sorted(cluster.ledger.nodes):
        node = cluster.ledger.node(name)
        for gpu in (entry.gpu for entry in cluster.entries(name)):
            is_out = bool(gpu.unusable or (node and node.out_of_use))
            named[gpu.uuid] = f"{gpu.node} · {gpu.index}{' (out of use)' if is_out else ''}"
    rows = cluster.usage.by_gpu(named, start, int((end - start) / HOUR))
    return sorted(rows, key=lambda row: -row.mean)[:MAX_GPUS] if len(rows) > MAX_GPUS else rows


def booked_by_model(
    records: Iterable[BookingRecord],
    stock: Mapping[str, ModelCapacity],
    start: datetime,
    now: datetime,
    shares_per_gpu: int = 1,
) -> Sequence[HourlyUsage]:
    """For each model and each hour until now: the part of its GPUs that was booked."""
    hours = int((now - start) / HOUR) + 1
    booked = {model: [0.0] * hours for model in stock}
    for record in records:
        row = booked.get(record.booking.model)
        if row is None:
            continue
        gpus = booked_gpus(record.booking, shares_per_gpu)
        since = max((record.booking.start - start) / HOUR, 0.0)
        until = (min(record.booking.ends, now) - start) / HOUR
        for hour in range(int(since), min(int(until) + 1, hours)):
            row[hour] += gpus * max(min(until, hour + 1) - max(since, hour), 0.0)
    return [
        HourlyUsage(wording.model(model), [min(part / max(stock[model].gpus, 1), 1.0) for part in parts])
        for model, parts in booked.items()
    ]


def fragmentation(ledger: Ledger) -> list[FragmentationRow]:
    """For each usual size and for a whole GPU: where it fits, and which free memory is too small."""
    usable = [name for name in ledger.nodes if (node := ledger.node(name)) and not node.out_of_use]
    entries = [entry for name in usable for entry in ledger.entries(name) if not (entry.gpu.unusable or entry.kept_for)]
    largest = max((entry.gpu.memory for entry in entries), default=0)
    found = []
    for size in (size for size in SIZES if size <= largest):
        lost = [entry.free for entry in entries if 0 < entry.free < size]
        found.append(
            FragmentationRow(memory_text(size), sum(entry.free >= size for entry in entries), len(lost), sum(lost))
        )
    lost = [entry.free for entry in entries if entry.shares and entry.free > 0]
    whole = sum(not entry.shares for entry in entries)
    return [*found, FragmentationRow("a whole GPU", whole, len(lost), sum(lost))] if entries else []


def as_csv(uses: Iterable[PersonUsage], start: datetime, end: datetime) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(
        ["from", "until", "person", "model", "bookings", "gpu_hours", "covered_hours", "opportunistic_hours"]
    )
    for use in uses:
        hours = [use.gpu_hours, use.covered_gpu_hours, use.opportunistic_gpu_hours]
        written = ["" if each is None else f"{each:.2f}" for each in hours]
        row = [spreadsheet_text(use.user), spreadsheet_text(use.model), use.bookings, *written]
        writer.writerow([start.isoformat(), end.isoformat(), *row])
    return text.getvalue()
