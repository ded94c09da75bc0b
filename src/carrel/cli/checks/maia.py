"""Where Carrel stands in MAIA's place: the steps of `docs/admission.md` whose omission nobody notices."""

from collections.abc import Sequence
from typing import Any

from carrel.cli.checks.component_pods import component_pods, newest
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, SERVICES

CONFIGURATION = "gpu-booking-webhook"
FOR_ALL = "CARREL_TERMINATOR_FOR_ALL"
OURS = "app.kubernetes.io/name"


async def maia(of: Installation) -> Sequence[Finding]:
    found: list[Finding] = []
    controller = newest(await component_pods(of, "controller"), "controller")
    if controller is not None and controller.given(FOR_ALL).lower() in ("true", "1", "yes"):
        text = "every pod of the cluster may ask the pod terminator to end opportunistic pods"
        found.append(warn(text, of.with_values("controller.terminator.forAll=false")))
    try:
        configuration = await of.client.get(MUTATING_WEBHOOKS, CONFIGURATION)
    except NotFound:
        return found or [ok("MAIA's webhook is not in this cluster")]
    for webhook in configuration.get("webhooks", ()):
        if webhook.get("rules"):  # where the chart gpu-booking stands before another Carrel, it asks about no pod
            found += await _of_webhook(of, webhook)
    return found or [ok(f"Carrel answers for {CONFIGURATION}")]


async def _of_webhook(of: Installation, webhook: dict[str, Any]) -> Sequence[Finding]:
    service = webhook.get("clientConfig", {}).get("service") or {}
    namespace, name = service.get("namespace", ""), service.get("name", "")
    try:
        selector = (await of.client.get(SERVICES, name, namespace)).get("spec", {}).get("selector") or {}
    except NotFound:
        delete = f"kubectl delete mutatingwebhookconfiguration {CONFIGURATION}"
        return [fail(f"{CONFIGURATION} names the Service {namespace}/{name}, which does not exist", delete)]
    if selector.get(OURS) != "carrel":
        text = f"MAIA's own webhook answers for {CONFIGURATION}: two webhooks decide about the same pods"
        return [
            fail(text, f"kubectl --namespace {namespace} get service {name}, and docs/admission.md, In MAIA's place")
        ]
    if webhook.get("failurePolicy") == "Ignore" and not webhook.get("matchConditions"):
        text = f"{CONFIGURATION} has failurePolicy Ignore: GPU pods are created without Carrel while it is away"
        return [warn(text, "set failurePolicy: Fail and the matchConditions, step 5 of docs/admission.md")]
    return []
