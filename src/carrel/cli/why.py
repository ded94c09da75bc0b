"""`carrel why`: the same words as in the pod's Event, which booking covers the pod, and who holds what would do."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from carrel.cli.options import BookingServiceSettings, DataFormat, PodQuerySettings
from carrel.option_fields import argument, option, setting

MOST_HOLDERS = 8
"""Who are named in a table."""

if TYPE_CHECKING:
    from carrel.cli.cluster_reader import ReadCluster
    from carrel.kubernetes.objects.kinds import Pod


@dataclass(frozen=True)
class WhySettings(PodQuerySettings):
    pod: str = argument("", "The pod, as pod/NAME or NAME; default: all pods that wait.")
    all_namespaces: bool = option(False, "Pods of all namespaces.", "--all-namespaces", "-A")
    booking_service: str = option(
        "",
        "URL of the booking service, which is asked if the cluster cannot be; default: the last login.",
        envvar="CARREL_URL",
    )
    """In a notebook nobody may read the cluster. The booking service knows the person's own pods."""
    token: str = setting("", "Token for the booking service.", show_default=False)
    insecure: bool = setting(False, "Send the token without TLS, even to another machine.")
    hub_token: str = option(
        "", "Token of a notebook, if there is no login.", envvar="JUPYTERHUB_API_TOKEN", hidden=True
    )

    def booking_settings(self) -> BookingServiceSettings:
        return BookingServiceSettings(self.booking_service, self.token, self.insecure, self.hub_token)


def why(settings: WhySettings) -> None:
    """Say why a pod waits, or runs without a GPU: what is missing, who holds it until when, which booking covers it.

    A booked pod may have GPUs asked back from opportunistic pods.

    Without a pod, it lists every pod that waits for a GPU.

    If you may not read the cluster, as in a notebook, it asks the booking service, which knows your own pods.

    Examples:

      carrel why pod/train-0 -n lab

      carrel why -A
    """
    from carrel.cli.cluster_reader import find_pod, full_name, pod_name
    from carrel.cli.own_pods import print_own_pods

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


def _cluster(settings: WhySettings) -> "tuple[ReadCluster, str] | None":
    """The cluster, and our namespace there. None: we may not read it, but have a token for a booking service."""
    from carrel.cli.booking_client import known_login
    from carrel.cli.cluster_reader import read_allowed_cluster, read_cluster
    from carrel.kubernetes.cluster import Forbidden
    from carrel.parsing import Malformed
    from carrel.process import cluster_access

    is_named = settings.server or settings.kubeconfig or settings.context
    if is_named or not known_login(settings.booking_settings()).token:
        access = cluster_access(settings)
        return read_cluster(settings, access), access.namespace
    try:
        access = settings.access()
        return read_allowed_cluster(settings, access), access.namespace
    except (Malformed, Forbidden):
        return None


def print_answer(answer: dict[str, Any], output: DataFormat) -> None:
    from carrel.cli.output import print_data, print_lines

    if output is DataFormat.TABLE:
        print_lines(*_lines(answer))
    else:
        print_data(answer, output)


def print_answers(answers: list[dict[str, Any]], output: DataFormat, if_none: str) -> None:
    from carrel.cli.output import print_data, print_lines

    if output is not DataFormat.TABLE:
        print_data(answers, output)
    elif not answers:
        print_lines(if_none)
    for each in answers if output is DataFormat.TABLE else ():
        print_lines(f"{each['pod']}: {each['why']}")


def _answer(carrel: "ReadCluster", pod: "Pod") -> dict[str, Any]:
    from carrel.cli.cluster_reader import full_name
    from carrel.cluster.coverage.coverage_reader import CoverageReader
    from carrel.cluster.coverage.coverage_words import WORDS

    reader = CoverageReader(carrel)
    told = reader.of(pod)
    waits = not pod.spec.node_name and carrel.waiting_reason.why(pod) is not None
    return {
        "pod": full_name(pod),
        "why": why_text(carrel, pod),
        "booking": _as_written(carrel, pod) or (WORDS.about(told) if told.asks else ""),
        "held_by": [WORDS.holder(each) for each in reader.holders(pod)] if waits else [],
    }


def _as_written(carrel: "ReadCluster", pod: "Pod") -> str:
    """For people who may not read bookings: what the pod was told."""
    from carrel.dialects.tier import tier_of
    from carrel.ledger.tiers import Tier

    is_unknown = not carrel.covered_pods.bookings() and tier_of(pod) is Tier.BOOKED
    return "booked, as is written on the pod; you see no bookings in the cluster" if is_unknown else ""


def _lines(answer: dict[str, Any]) -> list[str]:
    holders, more = answer["held_by"][:MOST_HOLDERS], len(answer["held_by"]) - MOST_HOLDERS
    lines = [answer["why"], *([f"Booking: {answer['booking']}"] if answer["booking"] else [])]
    lines += ["Held by:"] if holders else []
    return [*lines, *(f"  {holder}" for holder in holders), *([f"  and {more} more; see -o yaml"] if more > 0 else [])]


def why_text(carrel: "ReadCluster", pod: "Pod") -> str:
    from carrel.cli.cluster_reader import full_name
    from carrel.cluster.coverage.coverage_reader import CoverageReader
    from carrel.cluster.coverage.coverage_words import WORDS
    from carrel.dialects.without_gpu import read_without_gpu
    from carrel.lifecycle.handing_over.notices import how_lost

    name = full_name(pod)
    wants_gpus = carrel.pod_facts.asked(pod) is not None
    if not wants_gpus and (mark := read_without_gpu(pod)):
        free = CoverageReader(carrel).next_free(pod, mark)
        return f"{name}: {mark.sentence}. Now: {WORDS.free_again(free, can_start_again=True)}"
    if not wants_gpus and (how := how_lost(pod)):
        return f"{name} has lost its GPU: {how}; handed over to CPU"
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


def _last_words(pod: "Pod") -> str:
    """What kube-scheduler said when it last tried: it may know more than this command."""
    messages = (each.message for each in pod.status.conditions if each.type == "PodScheduled" and each.message)
    return "".join(f"; when it last tried, it said: {message}" for message in messages)


def _gpus(carrel: "ReadCluster", pod: "Pod") -> str:
    from carrel.cluster.record.shown_gpus import shown_indices

    own = carrel.holders.held_by(pod)
    numbers = sorted({n for uid in own for n in shown_indices(carrel.cluster_ledger, pod.spec.node_name, uid)})
    return f", GPU {', '.join(map(str, numbers))}" if numbers else ""


def _waits(carrel: "ReadCluster", pod: "Pod") -> bool:
    return not pod.spec.node_name and carrel.pod_facts.asked(pod) is not None
