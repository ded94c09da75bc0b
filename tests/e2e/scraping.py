"""A real Prometheus that scrapes the installed chart, as the Prometheus Operator would make it from the PodMonitor."""

import json
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.processes import Process
from testbed.prometheus import prometheus
from tests.e2e.chart import CHART, InstalledChart, rendered
from tests.e2e.pods import Json
from tests.kit.ports import free_port


@dataclass(frozen=True)
class Scraper:
    url: str
    process: Process

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def targets(self) -> dict[str, list[str]]:
        """Component → the health of its targets, and what went wrong with the last scrape."""
        found: dict[str, list[str]] = {}
        for each in self.ask("targets", state="active")["activeTargets"]:
            said = " ".join(filter(None, [each["health"], each["lastError"]]))
            found.setdefault(each["labels"]["component"], []).append(said)
        return found

    def value(self, query: str) -> float | None:
        """None: there is no such series."""
        found = self.ask("query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None


@contextmanager
def prometheus_of(chart: InstalledChart) -> Iterator[Scraper]:
    (monitor,) = [each for each in rendered("--set", "monitoring.podMonitor=true") if each["kind"] == "PodMonitor"]
    run, port = chart.api.run, free_port()
    file = run.data / "prometheus.yaml"
    file.write_text(yaml.safe_dump(configuration(monitor["spec"], chart.pods())))
    storage, address = f"--storage.tsdb.path={run.data / 'prometheus'}", f"--web.listen-address=127.0.0.1:{port}"
    command: list[str | Path] = [prometheus(), f"--config.file={file}", storage, address]
    process = Process.start("prometheus", command, run.log("prometheus"))
    scraper = Scraper(f"http://127.0.0.1:{port}", process)
    try:
        process.wait_until("ready", lambda: scraper.ask("status/buildinfo"))
        yield scraper
    finally:
        process.stop()


def configuration(monitor: Mapping[str, Any], pods: Iterable[Json]) -> Json:
    """What the operator makes of a PodMonitor: one job for each of its ports. Debian's Prometheus cannot ask the API
    server for pods, so they are written out."""
    selected = [
        each for each in pods if monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    jobs = [
        {
            "job_name": f"carrel/{endpoint['port']}",
            "scheme": endpoint.get("scheme", "http"),
            "tls_config": {"insecure_skip_verify": endpoint.get("tlsConfig", {}).get("insecureSkipVerify", False)},
            "static_configs": [each for pod in selected for each in targets(pod, endpoint["port"])],
        }
        for endpoint in monitor["podMetricsEndpoints"]
    ]
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    return {"global": often, "rule_files": [str(CHART / "monitoring/alerts.yaml")], "scrape_configs": jobs}


def targets(pod: Json, port: str) -> list[Json]:
    """The ports of that name."""
    labels = {
        "pod": pod["metadata"]["name"],
        "component": pod["metadata"]["labels"]["app.kubernetes.io/component"],
    }
    named = [each for container in pod["spec"]["containers"] for each in container.get("ports", [])]
    return [
        {"targets": [f"{pod['status']['podIP']}:{each['containerPort']}"], "labels": labels}
        for each in named
        if each.get("name") == port
    ]
