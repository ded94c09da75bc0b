"""The chart's dashboard and alert rules ask for metrics, labels and values that the components have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from carrel.cluster.invariants import Invariant
from carrel.cluster.waiting.waiting_reason import WaitCause
from carrel.ledger.slots import ReservationState
from carrel.ledger.tiers import Tier
from carrel.lifecycle.reporting.gpu_counts import GPU_STATES
from carrel.lifecycle.reporting.gpu_use import TIERS
from tools.chart_readme import CHART
from tools.dashboard import FILE, expressions, text
from tools.reference import metrics

DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((CHART / "monitoring/alerts.yaml").read_text())["groups"][0]["rules"]
OPERATE = Path("docs/operate.md")
OF_PROMETHEUS = {"le", "instance"}
"""Labels that no component writes."""
VALUES = {
    ("carrel_gpus", "state"): set(GPU_STATES),
    ("carrel_agents", "state"): {"reporting", "silent"},
    ("carrel_gpus_idle_held", "tier"): set(TIERS),
    ("carrel_waiting_pods", "tier"): {each.value for each in Tier},
    ("carrel_waiting_pods", "reason"): {each.value for each in WaitCause},
    ("carrel_reservations", "state"): {each.value for each in ReservationState},
    ("carrel_reviews_total", "outcome"): {"defect"},
    ("carrel_refusals_total", "kind"): {"defect", "api"},
    ("carrel_refusals_total", "verb"): {"filter", "prioritize", "bind"},
    ("carrel_node_gpus", "usable"): {"true", "false"},
}
"""The words that a query may compare with; others are patterns of numbers, or variables."""


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Every series that components show → its labels, by the reference, which is made from the code."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in re.findall(
        r"^\| `(carrel_\w+)` \| (\w+) \| ([^|]*) \|", metrics.page().text, re.MULTILINE
    ):
        of_it = set(re.findall(r"`(\w+)`", labels))
        series = [f"{name}_bucket", f"{name}_sum", f"{name}_count"] if kind == "histogram" else [name]
        found |= dict.fromkeys(series, of_it)
    return found


QUERIES = [*expressions(DASHBOARD["panels"]), *(rule["expr"] for rule in RULES)]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_metrics_labels_and_values_that_exist(query: str, known: dict[str, set[str]]) -> None:
    asked = re.findall(r"(carrel_\w+)(?:\{([^}]*)\})?", query)
    assert asked, "it asks for nothing of Carrel"
    assert {name for name, _ in asked} <= known.keys()
    for name, selector in asked:
        for label, operator, value in re.findall(r"(\w+)(=~|!~|!=|=)\"([^\"]*)\"", selector):
            assert label in known[name], f"{name} has no label {label}"
            if (name, label) in VALUES:
                words = set(value.split("|")) if "~" in operator else {value}
                assert words <= VALUES[name, label], f"{name} never has {label}={value}"
    labels = set().union(*(known[name] for name, _ in asked)) | OF_PROMETHEUS
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        assert set(grouped.split(", ")) <= labels


def test_legends_show_labels_that_are_left_after_the_query() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.search(r"by \(([^)]*)\)", target["expr"])
            left = set(grouped[1].split(", ")) if grouped else OF_PROMETHEUS
            assert shown <= left, f"{panel['title']}: {target['expr']}"


def test_the_dashboard_shows_every_metric_that_says_how_the_cluster_is(known: dict[str, set[str]]) -> None:
    """Some are left out: they are counted for other purposes, or another one says more."""
    left_out = {
        "carrel_binds_under_way",
        "carrel_booking_mirror_failures_total",
        "carrel_booking_service_failures_total",
        "carrel_claim_statuses_written_total",
        "carrel_database_migration",
        "carrel_events_told_total",
        "carrel_invariant_check_timestamp_seconds",
        "carrel_node_gpu_processes",
        "carrel_node_memory_resource",
        "carrel_node_plugin_registered",
        "carrel_pods_of_unlisted_spawners_total",
        "carrel_pods_of_unmatched_hub_users_total",
        "carrel_usage_gaps_total",
        "carrel_usage_waiting",
        "carrel_pods_without_person_total",
    }
    shown = set(re.findall(r"carrel_\w+", " ".join(expressions(DASHBOARD["panels"]))))
    assert {name for name in known if not name.endswith(("_sum", "_count"))} - shown == left_out


def test_the_dashboard_is_the_one_that_the_tool_writes() -> None:
    assert FILE.read_text() == text(), "run `make reference`, and commit what it wrote"


def test_panels_do_not_overlap_and_have_a_sentence_each() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_links_to_a_section_that_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook_url"] == f"docs/operate.md#{rule['alert'].lower()}"
    sections = re.findall(r"^### (\w+)\n(.+)", OPERATE.read_text(), re.MULTILINE)
    assert rule["alert"] in dict(sections)
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]


def test_the_page_for_operators_explains_every_invariant_and_every_reason() -> None:
    page = OPERATE.read_text()
    for word in (*Invariant, *WaitCause):
        assert f"`{word.value}`" in page


def test_no_section_is_left_of_an_alert_that_is_gone() -> None:
    written = re.findall(r"^### (Carrel\w+)", OPERATE.read_text(), re.MULTILINE)
    assert written == [rule["alert"] for rule in RULES]
