"""Who leads, and whether kube-scheduler asks the extender."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import yaml

from carrel.cli.checks.components import ask_metrics, component_pods
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.dialects.options import SCHEDULER
from carrel.kubernetes.cluster import ClusterError
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant, moment
from carrel.scheduling.scheduler_config import LONGEST_GANG_S, PREFIX, PROFILE

CONTROLLER_LEASE = "carrel-controller"
CONFIGURATION = "carrel-scheduler"
LEADER_SILENT = timedelta(seconds=60)
"""A leader renews its Lease every few seconds, and another takes over long before this."""


async def scheduler(of: Installation) -> Sequence[Finding]:
    for namespace in (of.namespace, "kube-system"):
        if (found := await _leader(of, SCHEDULER, namespace)) is not None:
            return [found]
    text = f"no kube-scheduler with the profile {SCHEDULER} has ever led: GPU pods wait"
    return [fail(text, of.kubectl("logs deployment/carrel-scheduler --all-containers"))]


async def controller(of: Installation) -> Sequence[Finding]:
    text = "no controller has ever led: nothing expires, and no GPU is freed"
    found = await _leader(of, CONTROLLER_LEASE, of.namespace)
    return [found or fail(text, of.kubectl("logs deployment/carrel-controller"))]


async def _leader(of: Installation, name: str, namespace: str) -> Finding | None:
    if (found := await of.find(LEASES, name, namespace)) is None:
        return None
    lease = found.get("spec", {})
    holder, renewed = lease.get("holderIdentity") or "", lease.get("renewTime") or ""
    try:
        at = instant(renewed, f"Lease {namespace}/{name}", "spec.renewTime")
    except Malformed as malformed:
        return fail(str(malformed), f"kubectl --namespace {namespace} delete lease {name}")
    if not holder or of.now() - at > LEADER_SILENT:
        return fail(f"nobody leads; last renewed at {moment(at, of.configuration.lab.zone)}", of.kubectl("get pods"))
    return ok(f"{holder.partition('_')[0]} leads")


async def extender(of: Installation) -> Sequence[Finding]:
    if (found := await of.find(CONFIG_MAPS, CONFIGURATION, of.namespace)) is None:
        text = (
            f"there is no ConfigMap {CONFIGURATION}: whether your kube-scheduler asks the extender, only --probe shows"
        )
        return [warn(text, "carrel doctor --probe")]
    text = found.get("data", {}).get("scheduler.yaml", "")
    if why := why_not_wired(text):
        return [fail(f"kube-scheduler does not ask the extender: {why}", of.install)]
    if (short := _shorter_than_gangs(of, text)) is not None:
        return [short]
    calls = await _calls(of)
    asked = "" if calls is None else f"; it has been asked {calls:,.0f} times since it started"
    return [ok(f"kube-scheduler is told to ask the extender{asked}")]


def why_not_wired(text: str) -> str:
    """What is wrong with kube-scheduler's configuration; empty: nothing."""
    try:
        configuration: Any = yaml.safe_load(text)
        profiles = [each.get("schedulerName") for each in configuration.get("profiles", ())]
        extenders = [each for each in configuration.get("extenders", ()) if each.get("bindVerb")]
    except (yaml.YAMLError, AttributeError, TypeError):
        return f"the ConfigMap {CONFIGURATION} is not a configuration"
    if PROFILE not in profiles:
        return f"no profile is called {PROFILE}"
    if len(extenders) != 1:
        return "it has no extender that binds" if not extenders else "it has two extenders that bind"
    (found,) = extenders
    if not str(found.get("urlPrefix", "")).endswith(PREFIX):
        return f"urlPrefix is {found.get('urlPrefix')!r}, and Carrel answers at {PREFIX}"
    if found.get("ignorable"):
        return "the extender is ignorable: a GPU pod would be placed without Carrel while it is away"
    if found.get("managedResources"):
        return "managedResources are given: pods that ask by annotations would never reach Carrel"
    lacking = [verb for verb in ("filterVerb", "prioritizeVerb") if not found.get(verb)]
    return f"{', '.join(lacking)} is not given" if lacking else ""


def _shorter_than_gangs(of: Installation, text: str) -> Finding | None:
    """kube-scheduler gives up on a bind of which the extender still waits for the gang."""
    waits = str(yaml.safe_load(text)["extenders"][0].get("httpTimeout", "5s")).removesuffix("s")
    if not waits.isdecimal() or int(waits) > LONGEST_GANG_S:
        return None
    words = f"kube-scheduler waits {waits} s for the extender, and a gang may take {LONGEST_GANG_S} s: gangs fail"
    return fail(words, of.install)


async def _calls(of: Installation) -> float | None:
    """How often all extenders together were asked; None: they cannot be asked that."""
    try:
        asked = [await ask_metrics(of, pod) for pod in await component_pods(of, "scheduler")]
    except ClusterError:
        return None
    counts = [each.total("carrel_filter_duration_seconds_count") for each in asked]
    return sum(filter(None, counts)) if None not in counts and counts else None
