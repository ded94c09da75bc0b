"""`carrel why` and `carrel explain`: the same words as in the pod's Event."""

from typing import Any

import typer

from carrel.cli.cluster_reading import read_cluster, show
from carrel.cli.explain import explain as explained
from carrel.cli.settings import ExplainSettings, Format, WhySettings
from carrel.command_errors import NOT_FOUND, USAGE, command_failed
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.cluster_state import ClusterState
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.hand_over import how_lost
from carrel.process import cluster_access


def say_why(settings: WhySettings) -> None:
    access = cluster_access(settings)
    name = _pod_name(settings.pod)
    carrel = read_cluster(settings, access)
    namespace = settings.namespace or access.namespace
    if name:
        pod = _pod(carrel, namespace, name)
        answer = {"pod": _title(pod), "why": _why(carrel, pod)}
        if settings.output is Format.TABLE:
            typer.echo(answer["why"])
        else:
            show(answer, settings.output)
        return
    waiting = [
        {"pod": _title(pod), "why": _why(carrel, pod)}
        for pod in sorted(carrel.pods.store, key=_title)
        if (settings.all_namespaces or pod.metadata.namespace == namespace) and _waits(carrel, pod)
    ]
    if settings.output is not Format.TABLE:
        show(waiting, settings.output)
    elif not waiting:
        typer.echo(
            "No pod waits for a card" + ("." if settings.all_namespaces else f" in {namespace}; -A looks everywhere.")
        )
    for each in waiting if settings.output is Format.TABLE else ():
        typer.echo(f"{each['pod']}: {each['why']}")


def say_all(settings: ExplainSettings) -> None:
    access = cluster_access(settings)
    name = _pod_name(settings.pod)
    carrel = read_cluster(settings, access)
    pod = _pod(carrel, settings.namespace or access.namespace, name)
    ask = carrel.requested_by(pod)
    nodes: dict[str, Placement | Refusal] = {}
    if ask is None or isinstance(ask, Refusal):
        headline = ask.reason if ask else _why(carrel, pod)
    else:
        remark = f", {ask.request.remark}" if ask.request.remark else ""
        headline = f"{_title(pod)} asks for {ask.request}{remark} ({ask.dialect.words})"
        nodes = explained(carrel.ledger, ask.request, carrel.nodes_for(pod), pod.metadata.uid)
    if settings.output is not Format.TABLE:
        show(
            {"pod": _title(pod), "asks": headline, "nodes": [_as_data(*each) for each in nodes.items()]},
            settings.output,
        )
        return
    typer.echo(headline)
    for node, answer in nodes.items():
        typer.echo(f"\n{node}: {_verdict(answer)}")
        for line in answer.details if isinstance(answer, Refusal) else ():
            typer.echo(f"  {line}")


def _verdict(answer: Placement | Refusal) -> str:
    if isinstance(answer, Refusal):
        return answer.reason
    return f"room, on GPU {', '.join(str(gpu.index) for gpu in answer.gpus)}"


def _as_data(node: str, answer: Placement | Refusal) -> dict[str, Any]:
    if isinstance(answer, Refusal):
        return {"node": node, "fits": False, "why": answer.reason, "cards": list(answer.details)}
    return {"node": node, "fits": True, "gpus": [gpu.index for gpu in answer.gpus]}


def _why(carrel: ClusterState, pod: Pod) -> str:
    title = _title(pod)
    asks_for_cards = carrel.requested_by(pod) is not None
    if not asks_for_cards and (how := how_lost(pod)):
        return f"{title} has no card any more: {how}; handed over to CPU"
    if pod.spec.node_name:
        return f"{title} does not wait: it is on {pod.spec.node_name}{_cards(carrel, pod)}"
    if not asks_for_cards:
        return f"{title} asks for no card: Carrel does not keep it waiting"
    refusal = carrel.why(pod)
    return (
        refusal.reason if refusal else f"there is room for {title}: {pod.spec.scheduler_name} may place it any moment"
    )


def _cards(carrel: ClusterState, pod: Pod) -> str:
    cards = [carrel.ledger.card(uuid) for uuid in carrel.ledger.shares_of(pod.metadata.uid)]
    numbers = sorted(card.gpu.index for card in cards if card is not None)
    return f", GPU {', '.join(map(str, numbers))}" if numbers else ""


def _waits(carrel: ClusterState, pod: Pod) -> bool:
    return not pod.spec.node_name and carrel.requested_by(pod) is not None


def _title(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _pod_name(word: str) -> str:
    kind, slash, name = word.rpartition("/")
    if slash and (kind not in ("pod", "pods", "po") or not name):
        raise command_failed(
            f"{word!r} is no pod", "A pod is named pod/NAME or NAME.", "carrel why pod/train-0 -n lab", USAGE
        )
    return name


def _pod(carrel: ClusterState, namespace: str, name: str) -> Pod:
    pod = carrel.pods.store.get(name, namespace)
    if pod is None:
        elsewhere = sorted(_title(other) for other in carrel.pods.store if other.metadata.name == name)
        hint = f" There is {', '.join(elsewhere)}." if elsewhere else ""
        why = f"Namespace {namespace!r} has no pod of that name.{hint}"
        raise command_failed(f"No pod {namespace}/{name}", why, f"kubectl get pods -n {namespace}", NOT_FOUND)
    return pod
