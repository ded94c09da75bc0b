"""The helm release that installed Carrel, for the commands that hints name. The charts label each object with it."""

from collections.abc import Mapping
from dataclasses import dataclass

from carrel.cluster.installation import MARKER
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError
from carrel.kubernetes.objects.resources import CLUSTER_ROLES

RELEASE_LABEL, CHART_LABEL = "app.kubernetes.io/instance", "helm.sh/chart"
MAIAS_CHART = "gpu-booking"
"""Has the values of the chart carrel below `carrel`."""


@dataclass(frozen=True, slots=True)
class HelmRelease:
    """The defaults are those of the documents, where nothing tells the release."""

    name: str = "carrel"
    chart: str = "carrel"

    def upgrade(self, namespace: str, options: str = "") -> str:
        return (
            f"helm upgrade {options}{self.name} charts/{self.chart} --namespace {namespace} --reset-then-reuse-values"
        )

    def with_values(self, namespace: str, *values: str) -> str:
        below = "carrel." if self.chart == MAIAS_CHART else ""
        return f"{self.upgrade(namespace)} --set {','.join(f'{below}{value}' for value in values)}"

    def uninstall(self, namespace: str) -> str:
        return f"helm uninstall {self.name} --namespace {namespace}"


def helm_release(labels: Mapping[str, str]) -> HelmRelease:
    """The release that an object with these labels belongs to."""
    chart = MAIAS_CHART if labels.get(CHART_LABEL, "").startswith(f"{MAIAS_CHART}-") else "carrel"
    return HelmRelease(labels.get(RELEASE_LABEL) or "carrel", chart)


async def marked_release(client: Client) -> HelmRelease:
    """The release of the marker of the installation; the defaults, if it cannot be read."""
    try:
        marker = await client.get(CLUSTER_ROLES, MARKER)
    except ClusterError:
        return HelmRelease()
    return helm_release(marker["metadata"].get("labels") or {})
