"""Why pods wait: the same words as in a pod's Event, which booking covers it, and who holds what would do.

Where the cluster cannot be read, the booking service tells about the person's own pods.
"""

from typing import Any

from carrel.cli.booking_client import asking, known_login
from carrel.cli.booking_text import Json
from carrel.cli.cluster_reader import (
    ReadCluster,
    find_pod,
    full_name,
    pod_name,
    read_cluster,
)
from carrel.cli.options import DataFormat
from carrel.cli.output import print_data, print_lines
from carrel.cli.why import WhySettings
from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.cluster.record.shown_gpus import shown_indices
from carrel.command_errors import NOT_FOUND, USAGE, command_failed
from carrel.dialects.tier import tier_of
from carrel.kubernetes.cluster import Forbidden
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.tiers import Tier
from carrel.parsing import Malformed
from carrel.settings import cluster_access

MOST_HOLDERS = 8
"""Who are named in a table."""


def print_why(settings: WhySettings) -> None:
    name = pod_name(settings.pod)
    found = _cluster(settings)
    if found is None:
        print_own_pods(settings, name)
        return
    carrel, own_namespace = found
    namespace = settings.namespace or own_namespace
    if name:
        print_answer(_answer(carrel, find_pod(carrel, namespace, name)), settings.output)
        return
    waiting = [
        _answer(carrel, pod)
        for pod in sorted(carrel.pods.store, key=full_name)
        if (settings.all_namespaces or pod.metadata.namespace == namespace) and _waits(carrel, pod)
    ]
    where = "." if settings.all_namespaces else f" in {namespace}; -A shows all namespaces."
    print_answers(waiting, settings.output, f"No pod waits for a GPU{where}")


def _cluster(settings: WhySettings) -> tuple[ReadCluster, str] | None:
    """The cluster, and our namespace there. None: we may not read it, but have a token for a booking service."""
    is_named = settings.server or settings.kubeconfig or settings.context
    if is_named or not known_login(settings.booking_settings()).token:
        access = cluster_access(settings)
        return read_cluster(settings, access), access.namespace
    try:
        access = settings.access()
        return read_cluster(settings, access, is_allowed=False), access.namespace
    except (Malformed, Forbidden):
        return None


def print_answer(answer: dict[str, Any], output: DataFormat) -> None:
    if output is DataFormat.TABLE:
        print_lines(*_lines(answer))
    else:
        print_data(answer, output)


def print_answers(answers: list[dict[str, Any]], output: DataFormat, if_none: str) -> None:
    if output is not DataFormat.TABLE:
        print_data(answers, output)
    elif not answers:
        print_lines(if_none)
    for each in answers if output is DataFormat.TABLE else ():
        print_lines(f"{each['pod']}: {each['why']}")


def _answer(carrel: ReadCluster, pod: Pod) -> dict[str, Any]:
    reader = CoverageReader(carrel, carrel.activities)
    told = reader.of(pod)
    waits = not pod.spec.node_name and carrel.waiting_reason.why(pod) is not None
    return {
        "pod": full_name(pod),
        "why": why_text(carrel, pod),
        "booking": _as_written(carrel, pod) or (carrel.words.about(told) if told.asks else ""),
        "held_by": [carrel.words.holder(each) for each in reader.holders(pod)] if waits else [],
        "use": carrel.use(carrel.activities.of_pod(pod)),
    }


def _as_written(carrel: ReadCluster, pod: Pod) -> str:
    """For people who may not read bookings: what the pod was told."""
    is_unknown = not carrel.covered_pods.bookings() and tier_of(pod) is Tier.BOOKED
    return "booked, as is written on the pod; you see no bookings in the cluster" if is_unknown else ""


def _lines(answer: dict[str, Any]) -> list[str]:
    holders, more = answer["held_by"][:MOST_HOLDERS], len(answer["held_by"]) - MOST_HOLDERS
    lines = [answer["why"], *([f"Booking: {answer['booking']}"] if answer["booking"] else [])]
    lines += [f"Use: {answer['use'].removeprefix('use ')}"] if answer["use"] else []
    lines += ["Held by:"] if holders else []
    return [*lines, *(f"  {holder}" for holder in holders), *([f"  and {more} more; see -o yaml"] if more > 0 else [])]


def why_text(carrel: ReadCluster, pod: Pod) -> str:
    name = full_name(pod)
    wants_gpus = carrel.pod_facts.asked(pod) is not None
    if why := CoverageReader(carrel).why_without_gpu(pod, carrel.words):
        return f"{name}: {why}"
    if pod.spec.node_name:
        return f"{name} does not wait: it is on {pod.spec.node_name}{_gpus(carrel, pod)}"
    if not wants_gpus and carrel.pod_facts.shares_of(pod):
        return f"{name} does not wait for a GPU: its claims have theirs; {pod.spec.scheduler_name} can place it now"
    if not wants_gpus:
        return f"{name} requests no GPU, so it does not wait for Carrel"
    scheduler, served = pod.spec.scheduler_name, carrel.rules.schedulers
    if served is not None and scheduler not in served and not carrel.requests.asks_any_scheduler(pod):
        why = f"is for the scheduler {scheduler!r}, and Carrel places only pods of others"
        return f"{name} {why}: delete it and create it again"
    refusal = carrel.waiting_reason.why(pod)
    return refusal.reason if refusal else f"there is room for {name}: {scheduler} can place it now{_last_words(pod)}"


def _last_words(pod: Pod) -> str:
    """What kube-scheduler said when it last tried: it may know more than this command."""
    messages = (each.message for each in pod.status.conditions if each.type == "PodScheduled" and each.message)
    return "".join(f"; when it last tried, it said: {message}" for message in messages)


def _gpus(carrel: ReadCluster, pod: Pod) -> str:
    own = carrel.holders.held_by(pod)
    numbers = sorted({n for uid in own for n in shown_indices(carrel.cluster_ledger, pod.spec.node_name, uid)})
    return f", GPU {', '.join(map(str, numbers))}" if numbers else ""


def _waits(carrel: ReadCluster, pod: Pod) -> bool:
    return not pod.spec.node_name and carrel.pod_facts.asked(pod) is not None


def print_own_pods(settings: WhySettings, name: str) -> None:
    """Say it of the person's own pods with this name, or of all that have no GPU although they asked for one."""
    service = settings.booking_settings()
    if not known_login(service).server:
        why = "This machine may not read the cluster, and CARREL_URL does not say where the booking service is."
        advice = "export CARREL_URL=https://hub.lab.example/services/carrel"
        raise command_failed("Nobody can be asked about your pods", why, advice, USAGE)

    with asking(service) as client:
        pods = [each for each in client.call("GET", "/pods").body["items"] if _is_meant(settings, each, name)]
    if not name:
        without = [_own_answer(each) for each in pods if each["waits"] or each["is_without_gpu"]]
        print_answers(without, settings.output, "None of your pods waits for a GPU, or runs without one.")
        return
    if not pods:
        why = "The booking service knows your own pods that ask for GPUs, and there is none with this name."
        raise command_failed(f"No pod {name} of yours", why, "carrel why", NOT_FOUND)
    for each in pods:
        print_answer(_own_answer(each), settings.output)


def _is_meant(settings: WhySettings, pod: Json, name: str) -> bool:
    namespace, _, own_name = str(pod["pod"]).partition("/")
    return settings.namespace in ("", namespace) and name in ("", own_name)


def _own_answer(pod: Json) -> Json:
    """In the form that the cluster's answer has."""
    return {field: pod[field] for field in ("pod", "why", "booking", "held_by", "use")}
