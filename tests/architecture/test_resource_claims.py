"""ResourceClaims are one package behind one seam: nothing else asks whether there are any, and where they are not
counted their code is not loaded."""

import re

import pytest

from tests.architecture.test_components import COMPONENTS, is_in, modules
from tests.kit.loaded_modules import loaded_modules

COMPOSITION = ("assembly", "run", "entry_point", "settings")
"""The modules of a component that put it together."""

A_CLUSTER = """
from kubernetes_in_memory import EmbeddedApi
from carrel.cluster.state import ClusterState
from carrel.kubernetes.client import Client
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.reading import read
from carrel.settings import cluster_options
client = Client(EmbeddedApi())
given = read("resourceClaims: {enabled: ENABLED}")
options = cluster_options(CurrentConfiguration(given), "carrel")
"""
ASSEMBLED = {
    "admission": """
from carrel.admission.assembly import AdmissionWebhook
from carrel.admission.options import admission_options
made = AdmissionWebhook(ClusterState(client, options), None, admission_options(given)).app()
""",
    "scheduling": """
from carrel.scheduling.assembly import SchedulerOptions, scheduler_on
made = scheduler_on(ClusterState(client, options), SchedulerOptions())
""",
    "lifecycle": """
from carrel.lifecycle.assembly import collector_on, resource_claims_on, tier_parts_on
from carrel.lifecycle.tier_options import tier_options
state = ClusterState(client, options)
made = collector_on(state), resource_claims_on(state), tier_parts_on(state, tier_options(given))
""",
    "node": """
from carrel.node.run import claim_driver_of
made = claim_driver_of(given.resource_claims)
""",
    "bookings": """
made = ClusterState(client, options)
""",
}
"""Component → how its parts are put together."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """What is loaded of the package, by component and configuration, where all components are imported already."""
    shared = "".join(f"import carrel.{name}\n" for name in ("__main__", *(f"{each}.run" for each in COMPONENTS)))
    codes = {
        f"{component} {enabled}": A_CLUSTER.replace("ENABLED", enabled) + ASSEMBLED[component]
        for component in COMPONENTS
        for enabled in ("false", "true")
    }
    found = loaded_modules(shared, codes)
    return {code: {name for name in names if is_in(name, ["carrel.resource_claims"])} for code, names in found.items()}


@pytest.mark.parametrize("enabled", ["false", "true"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_the_code_for_resource_claims_is_loaded_only_where_they_are_counted(
    component: str, enabled: str, loaded: dict[str, set[str]]
) -> None:
    found = loaded[f"{component} {enabled}"]

    assert bool(found) == (enabled == "true"), found


def test_components_import_resource_claims_only_where_they_are_put_together() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        if module.is_in([f"carrel.{component}" for component in COMPONENTS])
        and module.name.split(".")[-1] not in COMPOSITION
        for name in module.imports()
        if is_in(name, ["carrel.resource_claims"])
    ]
    assert not wrong


def test_nothing_else_asks_whether_resource_claims_are_counted() -> None:
    asks = re.compile(r"resource_claims\.enabled|\.driver is (?:not )?None|device_claims")
    composed = ("carrel.settings", "carrel.configuration", "carrel.cli", "carrel.demo", "carrel.resource_claims")
    wrong = [
        module.name
        for module in modules()
        if not module.is_in(composed)
        and module.name.split(".")[-1] not in COMPOSITION
        and asks.search(module.path.read_text())
    ]
    assert not wrong
