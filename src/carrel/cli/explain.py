"""`carrel explain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carrel.cli.complete import pods
from carrel.cli.options import DataFormat, PodQuerySettings
from carrel.ids import NodeName, PodUid
from carrel.ledger.refusals import Refusal

if TYPE_CHECKING:
    from carrel.ledger.ledger import Ledger
    from carrel.ledger.placement import Placement
    from carrel.ledger.requests import Request


@dataclass(frozen=True, kw_only=True)
class ExplainSettings(PodQuerySettings):
    pod: Annotated[str, typer.Argument(help="The pod, as pod/NAME or NAME.", autocompletion=pods)]


def explain(settings: ExplainSettings) -> None:
    """Show for each node and GPU whether a pod fits there, and what is missing if it does not.

    Examples:

      carrel explain pod/train-0 -n lab
    """
    from carrel.cli.cluster_reader import find_pod, full_name, pod_name, read_cluster
    from carrel.cli.output import print_data, print_lines
    from carrel.cli.pod_answers import why_text
    from carrel.scheduling.gangs import spread_out
    from carrel.settings import cluster_access

    access = cluster_access(settings)
    name = pod_name(settings.pod)
    carrel = read_cluster(settings, access)
    pod = find_pod(carrel, settings.namespace or access.namespace, name)
    wanted = carrel.pod_facts.asked(pod)
    nodes: dict[NodeName, Placement | Refusal] = {}
    if wanted is None or isinstance(wanted, Refusal):
        headline = wanted.reason if wanted else why_text(carrel, pod)
    else:
        remark = f", {wanted.request.remark}" if wanted.request.remark else ""
        headline = f"{full_name(pod)} asks for {wanted.request}{remark} ({wanted.dialect.words})"
        never = None if pod.spec.node_name else carrel.waiting_reason.why_never(pod, wanted.request)
        headline += f". {never.reason}" if never else ""
        request = spread_out(wanted.request) if carrel.rules.spreads else wanted.request
        nodes = (
            {} if never else placements(carrel.ledger, request, carrel.eligible_nodes.nodes_for(pod), pod.metadata.uid)
        )
        for closed in (
            () if never else filter(None, map(carrel.ledger.node, carrel.eligible_nodes.nodes_for(pod, when_open=True)))
        ):
            nodes.setdefault(closed.name, Refusal(f"{closed.name} is {closed.closed}"))
    if settings.output is not DataFormat.TABLE:
        document = {"pod": full_name(pod), "asks": headline, "nodes": [as_data(*each) for each in nodes.items()]}
        print_data(document, settings.output)
        return
    print_lines(headline)
    for node, answer in nodes.items():
        details = answer.details if isinstance(answer, Refusal) else ()
        print_lines("", f"{node}: {as_text(answer)}", *(f"  {line}" for line in details))


def placements(
    ledger: "Ledger", request: "Request", nodes: Sequence[NodeName], pod: PodUid
) -> "dict[NodeName, Placement | Refusal]":
    """For each node, as if the pod held nothing yet. `pod` is its UID."""
    from carrel.ledger.placement import place

    with ledger.what_if():
        ledger.give_back(pod)
        return {name: place(ledger, request, name, pod) for name in nodes}


def as_text(answer: "Placement | Refusal") -> str:
    if isinstance(answer, Refusal):
        return answer.reason
    labels = [gpu.label for gpu in answer.gpus]
    if not all(labels):
        return "fits; the kubelet chooses the GPU" if len(labels) == 1 else "fits; the kubelet chooses the GPUs"
    return f"fits, on {'MIG slice' if answer.gpus[0].slice else 'GPU'} {', '.join(labels)}"


def as_data(node: str, answer: "Placement | Refusal") -> dict[str, Any]:
    if isinstance(answer, Refusal):
        return {"node": node, "fits": False, "why": answer.reason, "gpus": list(answer.details)}
    return {"node": node, "fits": True, "gpus": [gpu.shown_index for gpu in answer.gpus]}
