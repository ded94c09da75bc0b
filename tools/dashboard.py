"""`python -m tools.dashboard`: writes the chart's Grafana dashboard from the list below.

A panel is a title, a sentence, and queries with their legends; where it stands follows from its order. Several replicas
say the same about the cluster, so such values are taken with `max`.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "charts/carrel/monitoring/dashboard.json"
WIDTH = 24
OF_MODEL = 'model=~"$model"'
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    title: str
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    red_from: float | None = None
    """A stat turns red there."""


def _stat(title: str, about: str, expr: str, unit: str = "short", red_from: float | None = None) -> Panel:
    return Panel(title, about, (Query(expr),), unit, kind="stat", width=4, height=4, red_from=red_from)


def _gpus(state: str) -> str:
    return f'sum(max by (model) (carrel_gpus{{{OF_MODEL},state="{state}"}}))'


def _quantiles(histogram: str, label: str = "") -> tuple[Query, ...]:
    by, shown = (f"le, {label}", f" {{{{{label}}}}}") if label else ("le", "")
    rate = f"sum by ({by}) (rate({histogram}_bucket[$__rate_interval]))"
    return tuple(Query(f"histogram_quantile({part}, {rate})", f"p{int(part * 100)}{shown}") for part in (0.5, 0.99))


def _rate(metric: str, by: str, selector: str = "") -> Query:
    words = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Query(f"sum by ({by}) (rate({metric}{selector}[$__rate_interval]))", words)


def _increase(metric: str, by: str = "") -> Query:
    words = " ".join(f"{{{{{label}}}}}" for label in by.split(", ")) if by else ""
    grouped = f"sum by ({by})" if by else "sum"
    return Query(f"{grouped} (increase({metric}[$__rate_interval]))", words)


ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        _stat(
            "Healthy GPUs",
            "GPUs that pods can have or use.",
            f"sum(max by (model) (carrel_gpus_healthy{{{OF_MODEL}}}))",
        ),
        _stat("Free GPUs", "Nobody holds a part of them, and they are kept for nobody.", _gpus("free")),
        _stat(
            "Booked GPUs",
            "Of the bookings that run now.",
            'sum(max by (model) (carrel_gpus_booked{model=~"$model|any"}))',
        ),
        _stat(
            "Waiting pods",
            "Pods that wait for a GPU, for whatever reason.",
            "sum(max by (reason, tier) (carrel_waiting_pods))",
        ),
        _stat(
            "Silent agents",
            "Nodes whose agent does not report: they take no new pods.",
            'max(carrel_agents{state="silent"})',
            red_from=1,
        ),
        _stat(
            "Broken invariants",
            "What must never be, counted every minute. It is 0.",
            "sum(max by (invariant) (carrel_invariant_violations))",
            red_from=1,
        ),
    ),
    "Capacity and use": (
        Panel(
            "GPUs by use",
            "Each GPU once: used by pods that a booking covers, only by others, kept for a booked pod, free, unusable.",
            (Query(f"sum by (state) (max by (model, state) (carrel_gpus{{{OF_MODEL}}}))", "{{state}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "GPUs by model",
            "The same now, by model.",
            (
                Query(f"max by (model) (carrel_gpus_healthy{{{OF_MODEL}}})", "healthy"),
                Query(f"max by (model) (carrel_gpus_booked{{{OF_MODEL}}})", "booked"),
                *(
                    Query(f'max by (model) (carrel_gpus{{{OF_MODEL},state="{state}"}})', state)
                    for state in ("covered", "opportunistic", "kept", "free", "unusable")
                ),
            ),
            kind="table",
            width=12,
        ),
        Panel(
            "Memory of GPUs",
            "Free, promised (assumed), handed over (assigned), and of pods that are ending (releasing).",
            (Query(f"sum by (state) (max by (model, state) (carrel_gpu_memory_bytes{{{OF_MODEL}}}))", "{{state}}"),),
            unit="bytes",
            width=12,
            stacked=True,
        ),
        Panel(
            "Fragmentation",
            "The part of the free memory that is on GPUs in use: no pod can have such a GPU whole.",
            (Query(f"max by (model) (carrel_gpu_fragmentation_ratio{{{OF_MODEL}}})", "{{model}}"),),
            unit="percentunit",
            width=12,
        ),
    ),
    "Booked, held, active": (
        Panel(
            "Booked, held and active GPUs",
            "Of the bookings that run; that pods hold; that have computed within half an hour. "
            "Held ones of which nobody knows it are not among the active ones.",
            (
                Query(f"sum(max by (model) (carrel_gpus_booked{{{OF_MODEL}}}))", "booked"),
                Query(f'sum(max by (model, state) (carrel_gpus{{{OF_MODEL},state=~"covered|opportunistic"}}))', "held"),
                Query(f"sum(max by (model) (carrel_gpus_active{{{OF_MODEL}}}))", "active"),
            ),
        ),
        Panel(
            "Held and idle GPUs",
            "They have not computed for half an hour, by the highest tier of their pods; "
            "and those of which nobody knows.",
            (
                Query(f"sum by (tier) (max by (model, tier) (carrel_gpus_idle_held{{{OF_MODEL}}}))", "idle {{tier}}"),
                Query(f"sum(max by (model) (carrel_gpus_use_unknown{{{OF_MODEL}}}))", "unknown"),
            ),
            stacked=True,
        ),
        Panel(
            "How busy held GPUs are",
            "The mean of the last samples of those of which it is known.",
            (Query(f"max by (model) (carrel_gpu_busy_ratio{{{OF_MODEL}}})", "{{model}}"),),
            unit="percentunit",
        ),
    ),
    "Bookings against use": (
        Panel(
            "Booked and covered",
            "GPUs of the bookings that run, and GPUs that their pods use. A gap: people book and do not use.",
            (
                Query(f"max by (model) (carrel_gpus_booked{{{OF_MODEL}}})", "booked {{model}}"),
                Query(f'max by (model) (carrel_gpus{{{OF_MODEL},state="covered"}})', "covered {{model}}"),
            ),
        ),
        Panel(
            "Bookable and unbooked",
            "What the booking service can give: GPUs that there are, that are not booked now, or that are set aside.",
            (
                Query(f"max by (model) (carrel_bookable_gpus{{{OF_MODEL}}})", "bookable {{model}}"),
                Query(f"max by (model) (carrel_unbooked_gpus{{{OF_MODEL}}})", "unbooked {{model}}"),
                Query(f"max by (model) (carrel_set_aside_gpus{{{OF_MODEL}}})", "set aside {{model}}"),
            ),
        ),
        Panel(
            "Overbooked",
            "GPUs that are booked beyond those that there are: some broke after they had been booked.",
            (Query(f"max by (model) (carrel_overbooked_gpus{{{OF_MODEL}}})", "{{model}}"),),
        ),
    ),
    "Waiting, and why": (
        Panel(
            "Waiting pods by reason",
            "docs/operate.md has the reasons.",
            (Query("sum by (reason) (max by (reason, tier) (carrel_waiting_pods))", "{{reason}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "Waiting pods by tier",
            "Booked pods wait only for the end of those that give a GPU back.",
            (Query("sum by (tier) (max by (reason, tier) (carrel_waiting_pods))", "{{tier}}"),),
            width=12,
            stacked=True,
        ),
    ),
    "Revocation and hand-over": (
        Panel(
            "Revoked and expired",
            "Pods that began to lose their GPU: to a booked pod, or because their booking was over.",
            (
                Query("sum(increase(carrel_pods_revoked_total[$__rate_interval]))", "revoked"),
                Query("sum(increase(carrel_pods_expired_total[$__rate_interval]))", "expired"),
            ),
        ),
        Panel(
            "Hand-overs that ended",
            "Why, and what became of the pod.",
            (_increase("carrel_hand_overs_closed_total", "why, outcome"),),
        ),
        Panel(
            "Coverage and freed shares",
            "Pods that were told that a booking covers them, or no more; and shares of pods that are gone.",
            (
                _increase("carrel_coverage_corrections_total", "way"),
                Query("sum(increase(carrel_shares_freed_total[$__rate_interval]))", "shares freed"),
            ),
        ),
    ),
    "Latency": (
        Panel("Admission", "Time to answer a review.", _quantiles("carrel_review_duration_seconds", "verb"), "s"),
        Panel("Filter", "Time to answer filter.", _quantiles("carrel_filter_duration_seconds"), "s"),
        Panel(
            "Bind",
            "A few calls to the API server, or the wait for a gang.",
            _quantiles("carrel_bind_duration_seconds", "outcome"),
            "s",
        ),
        Panel("Prioritize", "Time to answer prioritize.", _quantiles("carrel_prioritize_duration_seconds"), "s"),
        Panel(
            "API server",
            "Time until it answered.",
            _quantiles("carrel_api_request_duration_seconds", "verb"),
            "s",
        ),
        Panel("Booking service", "Duration of HTTP requests.", _quantiles("carrel_booking_call_duration_seconds"), "s"),
    ),
    "Calls and failures": (
        Panel("Reviews", "By outcome.", (_rate("carrel_reviews_total", "outcome"),), "reqps"),
        Panel(
            "Refusals of the extender", "By verb and kind.", (_rate("carrel_refusals_total", "verb, kind"),), "reqps"
        ),
        Panel("Booking service", "By status.", (_rate("carrel_booking_calls_total", "status"),), "reqps"),
        Panel(
            "Calls to the API server",
            "By verb and resource.",
            (_rate("carrel_api_requests_total", "verb, resource"),),
            "reqps",
        ),
        Panel(
            "Conflicts",
            "Another process was faster; the step is done again.",
            (_rate("carrel_api_requests_total", "resource", '{code="409"}'),),
            "reqps",
        ),
        Panel(
            "Other errors of the API server",
            "none: no answer.",
            (_rate("carrel_api_requests_total", "code", '{code=~"4..|5..|none",code!="409",code!="404"}'),),
            "reqps",
        ),
        Panel("Failed steps", "The log names the objects.", (_increase("carrel_object_failures_total", "step"),)),
        Panel(
            "Silence of watches",
            "Since the extender last heard anything of a kind.",
            (Query("max by (kind) (carrel_watch_silence_seconds)", "{{kind}}"),),
            "s",
        ),
        Panel(
            "Age of mirrored bookings",
            "Since all were compared with the database; and the age of answers of a booking service elsewhere.",
            (
                Query("max(carrel_booking_mirror_age_seconds)", "own bookings"),
                Query("max(carrel_booking_answer_age_seconds)", "bookings elsewhere"),
            ),
            "s",
        ),
        Panel(
            "Age of counted usage",
            "Since what pods hold and use was last written, by whichever replica. It waits while the database is away.",
            (Query("min(carrel_usage_age_seconds)", "last written"),),
            "s",
        ),
    ),
    "Health": (
        Panel(
            "Corrected Booking objects",
            "How many differed from the database when they were last compared.",
            (Query("max(carrel_booking_mirror_differences)", "differences"),),
        ),
        Panel(
            "Agents",
            "Nodes whose agent reports, or is silent.",
            (Query("max by (state) (carrel_agents)", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Nodes with trouble",
            "Unusable GPUs, pods with other GPUs than promised, and containers without their limit of memory, by the"
            " agents' own word.",
            (
                Query('carrel_node_gpus{usable="false"} > 0', "unusable {{instance}}"),
                Query("carrel_node_mismatches > 0", "mismatches {{instance}}"),
                Query("carrel_node_containers_not_limited > 0", "not limited {{instance}}"),
            ),
        ),
        Panel(
            "Since an agent reported",
            "More than 120 s: its node takes no new pods.",
            (Query("time() - carrel_node_reported_timestamp_seconds", "{{instance}}"),),
            "s",
        ),
        Panel(
            "Broken invariants",
            "By name; the controller's log says where.",
            (Query("max by (invariant) (carrel_invariant_violations)", "{{invariant}}"),),
        ),
        Panel(
            "Certificate of the webhook",
            "Time until it expires; it is renewed a month before.",
            (Query("min(carrel_certificate_expiry_timestamp_seconds > 0) - time()", "expires in"),),
            "s",
        ),
        Panel(
            "Reservations",
            "Beside NVIDIA's plugin.",
            (Query("max by (state) (carrel_reservations)", "{{state}}"),),
            stacked=True,
        ),
        Panel("Leader", "1: this replica leads.", (Query("carrel_leader", "{{instance}}"),)),
        Panel(
            "Configuration refused",
            "1: what is given is not in force, because of a mistake in it, or because pods hold GPUs.",
            (Query("max(carrel_configuration_refused)", "refused"),),
        ),
        Panel(
            "Clock",
            "How far a controller's clock is ahead of the API server's.",
            (Query("carrel_clock_skew_seconds", "{{instance}}"),),
            "s",
        ),
        Panel(
            "Count of the invariants",
            "How long the last one took.",
            (Query("max(carrel_invariant_check_duration_seconds)", "duration"),),
            "s",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    return {
        "uid": "carrel",
        "title": "Carrel: GPUs booked, shared and scheduled",
        "description": "Written by `python -m tools.dashboard`; what to do about trouble is in docs/operate.md.",
        "tags": ["carrel", "gpu", "kubernetes"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _models()]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}


def _models() -> dict[str, Any]:
    return {
        "name": "model",
        "label": "GPU model",
        "type": "query",
        "datasource": PROMETHEUS,
        "query": {"query": "label_values(carrel_gpus, model)", "refId": "models"},
        "definition": "label_values(carrel_gpus, model)",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
        }
        top, left = top + 1, 0
        for panel in panels:
            number += 1
            if left + panel.width > WIDTH:
                top, left = top + panel.height, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            yield {"id": number, "gridPos": place, **_content(panel)}
            left += panel.width
        top += panels[-1].height


def _content(panel: Panel) -> dict[str, Any]:
    is_table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + position),
            "datasource": PROMETHEUS,
            "expr": query.expr,
            "legendFormat": query.legend,
            **({"instant": True, "format": "table"} if is_table else {}),
        }
        for position, query in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": PROMETHEUS,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        **_extra(panel),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults |= {"min": 0, "custom": {"fillOpacity": 40 if panel.stacked else 5, "stacking": stacking}}
    if panel.kind == "stat":
        steps: list[dict[str, Any]] = [{"color": "text", "value": None}]
        if panel.red_from is not None:
            steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red_from}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return defaults


def _extra(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
        return {"options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}}
    if panel.kind == "stat":
        return {"options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}}
    # One table of all queries: a row for each model, a column for each query.
    names = {f"Value #{chr(ord('A') + position)}": query.legend for position, query in enumerate(panel.queries)}
    organise = {"excludeByName": {"Time": True}, "renameByName": names}
    return {
        "options": {"showHeader": True},
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organise}],
    }


def expressions(panels: Sequence[dict[str, Any]]) -> list[str]:
    """All queries of a dashboard."""
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> int:
    FILE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
