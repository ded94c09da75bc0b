"""What would happen to a cluster's GPU pods once Carrel is installed, namespace by namespace.

By what pods and Namespaces say: it works without Carrel, and changes nothing.
"""

from collections.abc import Iterator, Sequence

from carrel.cli.checks.finding import Finding, Installation, ok, warn
from carrel.cluster.watches import has_exemption
from carrel.dialects.carrel import EXEMPT
from carrel.dialects.jupyter import is_of_a_hub
from carrel.dialects.registry import ALL, dialects_of
from carrel.kubernetes.cluster import EVERYTHING
from carrel.kubernetes.objects.kinds import Namespace, Pod
from carrel.kubernetes.objects.resources import NAMESPACES, PODS
from carrel.parsing.malformed import Malformed

FINISHED = ("Succeeded", "Failed")
DEFAULT_SCHEDULER = "default-scheduler"
NAMED = 3
"""Pods that are named of those that would be refused."""


async def namespaces(of: Installation) -> Sequence[Finding]:
    known = {each.metadata.name: each for each in (await of.client.list(NAMESPACES, EVERYTHING)).items}
    theirs: dict[str, list[Pod]] = {}
    for pod in (await of.client.list(PODS, EVERYTHING)).items:
        if pod.status.phase not in FINISHED and _asks_for_gpus(pod):
            theirs.setdefault(pod.metadata.namespace, []).append(pod)
    if not theirs:
        return [ok("no pod asks for a GPU now: none is concerned")]
    found = [ok("pods that run keep their GPUs until they end; below is what happens to new ones")]
    for name, pods in sorted(theirs.items()):
        found += _of_namespace(of, name, known.get(name), pods)
    return found


def _asks_for_gpus(pod: Pod) -> bool:
    try:
        return bool(dialects_of(pod))
    except Malformed:
        return True


def _of_namespace(of: Installation, name: str, namespace: Namespace | None, pods: Sequence[Pod]) -> Iterator[Finding]:
    hop, settings = f"namespace {name}", of.configuration
    others = [each for each in pods if not is_of_a_hub(each)]
    notebooks, exempt = len(pods) - len(others), has_exemption(namespace)
    owner = namespace.metadata.annotations.get(settings.pods.owner_annotation, "") if namespace is not None else ""
    if notebooks and not exempt:
        yield ok(f"{_pods(notebooks, 'notebook')}: their hub's users', if hubs.accounts names the hub", hop)
    if exempt:
        yield ok(f"{_pods(len(pods))}: keep their GPUs, because the namespace is exempt", hop)
    elif others and owner:
        text = f"{_pods(len(others))}: of {owner}; booked while a booking of theirs runs, else they may lose their GPU"
        yield ok(text, hop)
    elif others:
        annotate = f"kubectl annotate namespace {name}"
        advice = f"{annotate} {settings.pods.owner_annotation}=ada@lab.example, or: {annotate} {EXEMPT}=true"
        text = f"{_pods(len(others))}: nobody's; no booking covers them, and they may lose their GPU to booked pods"
        yield warn(text, advice, hop)
    elsewhere = [each for each in pods if each.spec.scheduler_name not in _served(settings.pods.schedulers)]
    if elsewhere and not exempt:
        names = ", ".join(sorted(each.metadata.name for each in elsewhere)[:NAMED])
        schedulers = ", ".join(sorted({each.spec.scheduler_name for each in elsewhere}))
        text = f"{_pods(len(elsewhere))} ({names}): refused, because they want the scheduler {schedulers}"
        yield warn(text, "leave schedulerName out of their manifests", hop)


def _served(schedulers: Sequence[str]) -> set[str]:
    return {"", DEFAULT_SCHEDULER, *schedulers, *ALL.scheduler_names}


def _pods(count: int, what: str = "pod") -> str:
    return f"{count} {what}{'s' if count != 1 else ''} with GPUs"
