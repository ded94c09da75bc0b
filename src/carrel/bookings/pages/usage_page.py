"""The usage page: what was booked, held, active and idle, by model and person; which free memory is too small."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from starlette.requests import Request
from starlette.responses import Response

from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.pages import heat_map, usage_chart
from carrel.bookings.pages.heat_map import GpuHours
from carrel.bookings.pages.layout import Handler, Page
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.bookings.usage.figures import RowsBy, UsageQuestion, UsageRow, times_of, total
from carrel.bookings.usage.report import read_usage, read_usages
from carrel.bookings.usage.sums import HOUR, By, Counted, Gap, Step, UsageQuery, UsageSum
from carrel.ids import GpuUuid
from carrel.ledger.gpus import memory_text
from carrel.ledger.ledger import Ledger
from carrel.parsing.printable import spreadsheet_text

PERIODS = {7: "7 days", 14: "14 days", 30: "30 days", 90: "90 days", 365: "a year"}
USUAL_PERIOD = 14
LONGEST_BY_GPU = 14
"""In days: by the hour, more are too narrow to see. Of more GPUs than a picture has, fewer days are read."""
STEPS = {7: Step.DAY, 14: Step.DAY, 30: Step.DAY, 90: Step.WEEK, 365: Step.MONTH}
A_MINUTE = timedelta(minutes=1)
MOST_ROWS = 100
"""Of people and models, on the page. The table as CSV has all."""
MAX_GPUS = 64
"""In one picture."""
SIZES = (4096, 8192, 16384, 24576, 40960, 81920)
"""Usual request sizes, in MiB."""


@dataclass(frozen=True, slots=True)
class Period:
    """The last days of the lab, with today until now."""

    days: int
    start: datetime
    now: datetime

    @property
    def step(self) -> Step:
        return STEPS[self.days]

    def asked(self, by: RowsBy, step: Step = Step.WHOLE) -> UsageQuestion:
        return UsageQuestion(self.start, self.now, by, step)

    def counted_hours(self, counted: Counted) -> float:
        """How much of it is counted at all."""
        if counted.since is None or counted.until is None:
            return 0.0
        return max((min(counted.until, self.now) - max(counted.since, self.start)) / HOUR, 0.0)

    def uncounted(self, counted: Counted, gaps: Sequence[Gap]) -> Sequence[Gap]:
        """When nobody counted, with the time before the first count."""
        before = Gap(self.start, min(counted.since or self.now, self.now))
        return [*([before] if before.end > before.start else []), *gaps]


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
        service, period = self._service, self._period(request)
        asked = [period.asked(RowsBy.MODEL, period.step), period.asked(RowsBy.PERSON)]
        by_model, people = await read_usages(service, asked, person)
        counted, gaps = Counted(), list[Gap]()
        if service.usage is not None:
            counted = await service.usage.counted()
            gaps = [*await service.usage.gaps(period.start, period.now)]
        stock = {model: each.total * each.part for model, each in self._queries.inventory.stock().items()}
        times, most = times_of(asked[0], service.lab_zone), max((row.most for row in people), default=0.0)
        models = usage_chart.by_model(by_model, stock, times, is_held_known=service.usage is not None)
        uncounted = period.uncounted(counted, gaps) if service.usage is not None else []
        names = usage_chart.StepNames(period.step, service.lab_zone)
        cluster, latest = service.cluster_view, self._latest_by_gpu(period)
        by_gpu = await self._by_gpu(latest, counted) if latest is not None else ()
        return self._renderer.page(
            request,
            person,
            "usage.html",
            period=period,
            periods=PERIODS,
            names=names,
            models=[(each, usage_chart.draw(each, names, uncounted)) for each in models],
            booked=sum(row.booked or 0.0 for row in by_model),
            held=total(by_model),
            possible=sum(stock.values()) * ((period.now - period.start) / HOUR),
            possibly_held=sum(stock.values()) * period.counted_hours(counted),
            people=[(row, usage_chart.bar(row, most)) for row in people[:MOST_ROWS]],
            more_people=max(len(people) - MOST_ROWS, 0),
            sees_everybody=person.may_see_everybodys_figures,
            has_cluster=cluster is not None,
            counted=counted,
            gaps=gaps,
            longest_by_gpu=LONGEST_BY_GPU,
            by_gpu=by_gpu,
            by_gpu_days=latest.days if latest is not None else 0,
            by_gpu_picture=heat_map.draw(by_gpu, (latest or period).start, self._queries.zone, uncounted),
            fragmentation=fragmentation(cluster.ledger) if cluster else [],
        )

    async def table(self, request: Request, person: CurrentPerson) -> Response:
        period = self._period(request)
        rows = await read_usage(self._service, period.asked(RowsBy.PERSON), person)
        headers = {"content-disposition": f'attachment; filename="carrel-usage-{period.days}-days.csv"'}
        return Response(as_csv(rows), media_type="text/csv; charset=utf-8", headers=headers)

    def _period(self, request: Request) -> Period:
        text = request.query_params.get("days", "")
        return self._last_days(int(text) if text in map(str, PERIODS) else USUAL_PERIOD)

    def _last_days(self, days: int) -> Period:
        now, zone = self._queries.now(), self._service.lab_zone
        today = now.astimezone(zone).date()
        start, last = (
            datetime.combine(day, time(), zone).astimezone(UTC) for day in (today - timedelta(days=days - 1), today)
        )
        # In the first second of a day there is nothing to divide by.
        return Period(days, start, max(now, last + A_MINUTE))

    def _latest_by_gpu(self, period: Period) -> Period | None:
        """Return the days of which each GPU is shown by the hour; None: none are."""
        cluster = self._service.cluster_view
        if self._service.usage is None or cluster is None or period.days > LONGEST_BY_GPU:
            return None
        gpus = sum(len(cluster.entries(name)) for name in cluster.ledger.nodes)
        return self._last_days(min(period.days, max(LONGEST_BY_GPU * MAX_GPUS // max(gpus, 1), 1)))

    async def _by_gpu(self, period: Period, counted: Counted) -> Sequence[GpuHours]:
        service = self._service
        if service.usage is None or service.cluster_view is None:
            return ()
        asked = UsageQuery(period.start, period.now, Step.HOUR, (By.GPU,))
        sums = await service.usage.sums(asked, service.lab_zone)
        return hours_by_gpu(sums, named_gpus(service.cluster_view), period.start, counted.until or period.now)


def named_gpus(cluster: ClusterView) -> Mapping[GpuUuid, str]:
    found: dict[GpuUuid, str] = {}
    for name in sorted(cluster.ledger.nodes):
        node = cluster.ledger.node(name)
        for gpu in (entry.gpu for entry in cluster.entries(name)):
            is_out = bool(gpu.unusable or (node and node.out_of_use))
            found[gpu.uuid] = f"{gpu.node} · {gpu.label}{' (out of use)' if is_out else ''}"
    return found


def hours_by_gpu(
    sums: Iterable[UsageSum], gpus: Mapping[GpuUuid, str], start: datetime, until: datetime
) -> Sequence[GpuHours]:
    """Return which part of each GPU was held, hour by hour. If there are too many, those that were held most."""
    hours = int((until - start) / HOUR) + 1
    parts = {uuid: [0.0] * hours for uuid in gpus}
    for each in sums:
        number = int((each.start - start) / HOUR)
        if each.gpu in parts and 0 <= number < hours:
            known = min((until - each.start) / HOUR, 1.0)
            parts[each.gpu][number] = min(each.held / known, 1.0) if known > 0 else 0.0
    rows = [GpuHours(name, parts[uuid]) for uuid, name in gpus.items()]
    return sorted(rows, key=lambda row: -row.mean)[:MAX_GPUS] if len(rows) > MAX_GPUS else rows


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


NAMES = ("from", "until", "person", "group", "model", "bookings")
HOURS = ("booked", "held", "active", "idle", "unknown", "covered", "opportunistic")


def as_csv(rows: Iterable[UsageRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([*NAMES, *(f"{name}_hours" for name in HOURS)])
    for row in rows:
        held = [getattr(row.held, name) if row.held else None for name in HOURS[1:]]
        named = [spreadsheet_text(name) for name in (row.person, row.group, row.model)]
        hours = ["" if each is None else round(each, 4) for each in (row.booked, *held)]
        writer.writerow([row.start.isoformat(), row.end.isoformat(), *named, row.bookings, *hours])
    return text.getvalue()
