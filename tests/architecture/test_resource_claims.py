"""ResourceClaims are one package behind one seam: nothing else asks whether there are any, and where they are not
counted their code is not loaded."""

import re
import subprocess
import sys

import pytest

from tests.architecture.test_components import COMPONENTS, is_in, modules

COMPOSITION = ("assembly", "run", "entry_point", "settings")
"""The modules of a component that put it together."""

A_CLUSTER = """
from kubernetes_in_memory import EmbeddedApi
from carrel.cluster.state import ClusterState
from carrel.kubernetes.client import Client
client = Client(EmbeddedApi())
"""
ASSEMBLED = {
    "admission": """
from carrel.admission.assembly import AdmissionWebhook
from carrel.admission.options import AdmissionOptions
from carrel.admission.settings import WebhookSettings as Settings
made = AdmissionWebhook(ClusterState(client, Settings({}).cluster_options()), None, AdmissionOptions()).app(lambda: 0.0)
""",
    "scheduling": """
from carrel.scheduling.assembly import scheduler_on
from carrel.scheduling.settings import ExtenderSettings as Settings
made = scheduler_on(ClusterState(client, Settings({}).options()), Settings({}).scheduler_options())
""",
    "lifecycle": """
from carrel.lifecycle.assembly import collector_on, resource_claims_on, tier_parts_on
from carrel.lifecycle.settings import ControllerSettings as Settings
state = ClusterState(client, Settings({}).options())
made = collector_on(state), resource_claims_on(state), tier_parts_on(state, Settings({}).tier_options())
""",
    "node": """
from carrel.node.run import claim_driver_of
from carrel.node.settings import AgentSettings as Settings
made = claim_driver_of(Settings({}))
""",
    "bookings": """
from carrel.bookings.settings import BookingSettings as Settings
made = ClusterState(client, Settings({}).options())
""",
}
"""Component → how its parts are put together, with settings in braces."""


@pytest.mark.parametrize(("dra", "is_loaded"), [("", False), ("dra=True", True)], ids=["off", "on"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_the_code_for_resource_claims_is_loaded_only_where_they_are_counted(
    component: str, dra: str, is_loaded: bool
) -> None:
    script = (
        f"import sys, carrel.__main__, carrel.{component}.run\n{A_CLUSTER}{ASSEMBLED[component].replace('{}', dra)}"
    )
    script += "print(*(name for name in sys.modules if name.startswith('carrel.resource_claims')))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert bool(loaded) == is_loaded, loaded


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
    asks = re.compile(r"settings\.dra\b|self\.dra\b|\.driver is (?:not )?None|device_claims")
    composed = ("carrel.settings", "carrel.cli", "carrel.demo", "carrel.resource_claims")
    wrong = [
        module.name
        for module in modules()
        if not module.is_in(composed)
        and module.name.split(".")[-1] not in COMPOSITION
        and asks.search(module.path.read_text())
    ]
    assert not wrong
