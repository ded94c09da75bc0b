"""Prometheus' own tool reads the chart's alert rules and the dashboard's queries, and alerts fire when they should."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.prometheus import promtool
from tests.e2e.chart import CHART, rendered
from tools.dashboard import FILE, expressions

RULES = CHART / "monitoring/alerts.yaml"


def check(*words: str | Path) -> None:
    outcome = subprocess.run([promtool(), *words], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_the_rules_are_valid() -> None:
    check("check", "rules", RULES)


def test_the_rules_that_the_chart_makes_are_valid_and_link_to_the_labs_own_page(tmp_path: Path) -> None:
    made = rendered("--set", "monitoring.alertRules=true,monitoring.runbookUrl=https://wiki.lab.example/carrel")
    (rule,) = [each for each in made if each["kind"] == "PrometheusRule"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    check("check", "rules", tmp_path / "rules.yaml")
    links = [each["annotations"]["runbook_url"] for each in rule["spec"]["groups"][0]["rules"]]
    assert len(links) > 10
    assert all(link.startswith("https://wiki.lab.example/carrel#carrel") for link in links)
    assert rule["metadata"]["labels"]["app.kubernetes.io/name"] == "carrel"


def test_the_dashboard_is_a_config_map_that_grafanas_sidecar_finds() -> None:
    made = rendered("--set", "monitoring.dashboard=true")
    (found,) = [each for each in made if each["metadata"]["name"] == "carrel-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["carrel.json"]) == json.loads(FILE.read_text())


def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """As recording rules; a variable of Grafana's is replaced by a value that it may have."""
    queries = expressions(json.loads(FILE.read_text())["panels"])
    plain = [query.replace("$__rate_interval", "5m").replace("$model", ".*") for query in queries]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(plain)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    check("check", "rules", file)


ZERO, ONE = "0+0x120", "1+0x120"
FIVE_HOURS = "1+0x300"
IDLE_A100, IDLE_T4 = (f'carrel_gpus_idle_held{{model="{model}",tier="booked"}}' for model in ("A100", "T4"))
WAITING = 'carrel_waiting_pods{tier="opportunistic",reason="no_free_gpu"}'


def alert(name: str, series: dict[str, str], fires: dict[str, str] | None, after: str = "30m") -> Any:
    """`fires`: the labels of the alert that fires then; None: none does."""
    return pytest.param(name, series, fires, after, id=f"{name} {'fires' if fires is not None else 'is silent'}")


CASES = [
    alert(
        "CarrelInvariantViolated",
        {'carrel_invariant_violations{invariant="memory_exceeded",pod="a"}': "0+0x10 2+0x50"},
        {"severity": "critical", "invariant": "memory_exceeded"},
    ),
    alert("CarrelInvariantViolated", {'carrel_invariant_violations{invariant="memory_exceeded",pod="a"}': ZERO}, None),
    alert("CarrelNoLeader", {'carrel_leader{pod="a"}': ZERO, 'carrel_leader{pod="b"}': ZERO}, {"severity": "critical"}),
    alert("CarrelNoLeader", {}, {"severity": "critical"}),
    alert("CarrelNoLeader", {'carrel_leader{pod="a"}': ONE, 'carrel_leader{pod="b"}': ONE}, {"severity": "critical"}),
    alert("CarrelNoLeader", {'carrel_leader{pod="a"}': ONE, 'carrel_leader{pod="b"}': ZERO}, None),
    alert(
        "CarrelNoLeader",
        {'carrel_leader{pod="a"}': "1+0x10 0+0x20 0+0x90", 'carrel_leader{pod="b"}': "0+0x11 1+0x100"},
        None,
        after="13m",
    ),
    alert("CarrelConfigurationRefused", {'carrel_configuration_refused{pod="a"}': ONE}, {"severity": "warning"}),
    alert("CarrelConfigurationRefused", {'carrel_configuration_refused{pod="a"}': "0+0x25 1+0x90"}, None),
    alert(
        "CarrelDefect",
        {'carrel_reviews_total{verb="mutate",outcome="defect"}': "0+0x25 1+0x90"},
        {"severity": "critical", "verb": "mutate", "outcome": "defect"},
    ),
    alert("CarrelDefect", {'carrel_reviews_total{verb="mutate",outcome="defect"}': "1+0x120"}, None),
    alert("CarrelAgentSilent", {'carrel_agents{state="silent"}': "0+0x20 1+0x90"}, {"severity": "warning"}),
    alert("CarrelAgentSilent", {'carrel_agents{state="silent"}': "0+0x27 1+0x90"}, None),
    alert(
        "CarrelGpusIdleWhilePodsWait",
        {IDLE_A100: FIVE_HOURS, IDLE_T4: "0+0x300", WAITING: FIVE_HOURS},
        {"model": "A100", "severity": "info"},
        "4h5m",
    ),
    alert("CarrelGpusIdleWhilePodsWait", {IDLE_A100: FIVE_HOURS, WAITING: FIVE_HOURS}, None, "3h55m"),
    alert("CarrelGpusIdleWhilePodsWait", {IDLE_A100: FIVE_HOURS, WAITING: "0+0x300"}, None, "4h5m"),
    alert(
        "CarrelBookedPodWaits",
        {
            'carrel_waiting_pods{tier="booked",reason="no_free_gpu",pod="a"}': ONE,
            'carrel_waiting_pods{tier="booked",reason="no_free_gpu",pod="b"}': ZERO,
        },
        {"severity": "warning"},
    ),
    alert(
        "CarrelBookedPodWaits",
        {
            'carrel_waiting_pods{tier="booked",reason="scheduling_gate"}': ONE,
            'carrel_waiting_pods{tier="opportunistic",reason="no_free_gpu"}': ONE,
        },
        None,
    ),
    alert(
        "CarrelCertificateExpires",
        {'carrel_certificate_expiry_timestamp_seconds{pod="a"}': "1727999+0x200"},
        {"severity": "critical"},
        after="61m",
    ),
    alert("CarrelCertificateExpires", {"carrel_certificate_expiry_timestamp_seconds": "7000000+0x200"}, None, "61m"),
    alert("CarrelInvariantsNotCounted", {"carrel_invariant_check_timestamp_seconds": ONE}, {"severity": "warning"}),
    alert("CarrelInvariantsNotCounted", {"carrel_invariant_check_timestamp_seconds": "0+60x120"}, None),
]


@pytest.mark.parametrize(("name", "series", "fires", "after"), CASES)
def test_an_alert_fires_when_it_should(
    name: str, series: dict[str, str], fires: dict[str, str] | None, after: str, tmp_path: Path
) -> None:
    """Annotations, which have values in them, are not compared."""
    query = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    given = {"alertname": name, "alertstate": "firing", **(fires or {})}
    labels = ",".join(f'{key}="{value}"' for key, value in sorted(given.items()))
    expected = [] if fires is None else [{"labels": f"ALERTS{{{labels}}}", "value": 1}]
    case = {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": after, "exp_samples": expected}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    check("test", "rules", file)
