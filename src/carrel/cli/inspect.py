"""`carrel inspect`: the tables of `kubectl inspect gpushare`, from Carrel's own ledger. Scripts read them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carrel.cli.options import ClusterQuerySettings, DataFormat
from carrel.cli.output import aligned, print_data, print_lines
from carrel.command_errors import NOT_FOUND, command_failed
from carrel.dialects.options import Unit
from carrel.ids import NO_NODE, NodeName
from carrel.ledger.gpus import FIRST_SLICE, label_of, named
from carrel.option_fields import argument, option

if TYPE_CHECKING:
    from carrel.cli.cluster_reader import ReadCluster
    from carrel.cluster.state import ClusterState
    from carrel.dialects.gpushare import InspectedGpu, InspectedNode

NOTHING: Mapping[tuple[str, str], str] = {}
NO_REMARKS: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True)
class InspectSettings(ClusterQuerySettings):
    """With `-o json` the output is what gpushare's extender answers, byte for byte."""

    node: NodeName = argument(NO_NODE, "One node; default: all.")
    details: bool = option(False, "Also show the pods of each node.", "--details", "-d")


def inspect(settings: InspectSettings) -> None:
    """Show how much of each GPU is held, in the format of `kubectl inspect gpushare`, for pods of every dialect.

    Examples:

      carrel inspect

      carrel inspect dgx-1 -d

      carrel inspect -o json
    """
    from carrel.cli.cluster_reader import read_cluster
    from carrel.cluster.record.shown_gpus import shown_gpus
    from carrel.dialects.gpushare import inspected, inspection
    from carrel.settings import cluster_access

    carrel = read_cluster(settings, cluster_access(settings))
    ledger = carrel.ledger
    if settings.node and ledger.node(settings.node) is None:
        why = "No node with this name has reported GPUs."
        raise command_failed(f"No GPUs on {settings.node}", why, "carrel inspect", NOT_FOUND)
    only = [settings.node] if settings.node else None
    unit = carrel.one_unit()
    nodes = inspected(ledger, unit, only, lambda name: shown_gpus(carrel.cluster_ledger, name))
    if settings.output is not DataFormat.TABLE:
        print_data(inspection(nodes), settings.output)
        return
    addresses = _addresses(carrel)
    booked = _booked_until(carrel)
    if settings.details:
        remarks: dict[str, list[str]] = {
            node.name: [*set_aside(carrel, node.name), *idle(carrel, node.name)] for node in nodes
        }
        lines = details(nodes, addresses, booked, remarks)
    else:
        lines = summary(nodes, addresses, unit)
    print_lines(*lines)


def summary(nodes: "Sequence[InspectedNode]", addresses: dict[str, str], unit: "Unit") -> Iterable[str]:
    most = max((len(node.gpus) for node in nodes), default=0)
    head = ["NAME", "IPADDRESS", *(f"GPU{i}(Allocated/Total)" for i in range(most)), f"GPU Memory({unit.value})"]
    rows = [
        [
            node.name,
            addresses.get(node.name, ""),
            *(f"{_slice_label(gpu)}{_used([gpu])}/{gpu.total}" for gpu in node.gpus),
            *["0/0"] * (most - len(node.gpus)),
            f"{_used(node.gpus)}/{_total(node.gpus)}",
        ]
        for node in nodes
    ]
    table = aligned([head, *rows])
    gpus = [gpu for node in nodes for gpu in node.gpus]
    yield from table
    yield "-" * max(map(len, table))
    yield "Allocated/Total GPU Memory In Cluster:"
    yield f"{_used(gpus)}/{_total(gpus)} ({_percent(gpus)}%)"


def _slice_label(gpu: "InspectedGpu") -> str:
    """What says that a column is of a MIG slice, `0:3=`; nothing for a GPU, whose column has its number."""
    return f"{label_of(gpu.index)}=" if gpu.index >= FIRST_SLICE else ""


def details(
    nodes: "Sequence[InspectedNode]",
    addresses: dict[str, str],
    booked_until: Mapping[tuple[str, str], str] = NOTHING,
    remarks: Mapping[str, Sequence[str]] = NO_REMARKS,
) -> Iterable[str]:
    """`booked_until`: of pods that a booking covers, by namespace and name. The column is there if there are some.
    `remarks`: which GPUs of a node nobody gets now, and which are held and idle."""
    for number, node in enumerate(nodes):
        if number:
            yield ""
        yield f"NAME:       {node.name}"
        yield f"IPADDRESS:  {addresses.get(node.name, '')}"
        yield ""
        pods = sorted({(pod.namespace, pod.name) for gpu in node.gpus for pod in gpu.pods})
        head = ["NAME", "NAMESPACE", *(f"GPU{label_of(gpu.index)}(Allocated)" for gpu in node.gpus)]
        is_booked = any(pod in booked_until for pod in pods)
        head += ["BOOKED UNTIL"] * is_booked
        rows = [
            [
                *(name, namespace),
                *(str(_used_by(gpu, namespace, name)) for gpu in node.gpus),
                *([booked_until.get((namespace, name), "–")] * is_booked),
            ]
            for namespace, name in pods
        ]
        yield from aligned([head, *rows])
        yield f"Allocated :  {_used(node.gpus)} ({_percent(node.gpus)}%)"
        yield f"Total :      {_total(node.gpus)}"
        yield from remarks.get(node.name, ())


def set_aside(carrel: "ClusterState", name: NodeName) -> list[str]:
    from carrel.cluster.record.shown_gpus import shown_gpus

    node = carrel.ledger.node(name)
    whole = [f"{name} takes no new GPU pods: {node.out_of_use}"] if node is not None and node.out_of_use else []
    gpus = [entry.gpu for entry in shown_gpus(carrel.cluster_ledger, name) if entry.gpu.unusable]
    return [*whole, *(f"{named(gpu.index)} is set aside: {gpu.unusable}" for gpu in gpus)]


def idle(carrel: "ReadCluster", name: NodeName) -> list[str]:
    from carrel.cluster.record.shown_gpus import shown_gpus

    found = [(entry.gpu.index, carrel.activities.of(entry)) for entry in shown_gpus(carrel.cluster_ledger, name)]
    held_idle = ((index, activity) for index, activity in found if activity is not None and activity.is_idle)
    return [f"{named(index)} is held, {carrel.use(activity)}" for index, activity in held_idle]


def _booked_until(carrel: "ClusterState") -> dict[tuple[str, str], str]:

    found = [
        (pod.metadata, carrel.covered_pods.of(pod.metadata.uid)) for pod in carrel.pods.store if pod.spec.node_name
    ]
    booked = {
        (pod.namespace, pod.name): carrel.words.when(covered.entitlement.ends) for pod, covered in found if covered
    }
    shares = (share for lease in carrel.cluster_ledger.leases() for share in lease.record.shares)
    for holder in (share.holder for share in shares if share.holder.is_claim):
        if (covered := carrel.covered_pods.of(holder.uid)) is not None:
            booked[holder.namespace, holder.name] = carrel.words.when(covered.entitlement.ends)
    return booked


def _addresses(carrel: "ClusterState") -> dict[str, str]:
    return {
        node.metadata.name: next((each.address for each in node.status.addresses if each.type == "InternalIP"), "")
        for node in carrel.nodes.store
    }


def _used(gpus: "Sequence[InspectedGpu]") -> int:
    return sum(pod.used for gpu in gpus for pod in gpu.pods)


def _used_by(gpu: "InspectedGpu", namespace: str, name: str) -> int:
    return sum(pod.used for pod in gpu.pods if (pod.namespace, pod.name) == (namespace, name))


def _total(gpus: "Sequence[InspectedGpu]") -> int:
    return sum(gpu.total for gpu in gpus)


def _percent(gpus: "Sequence[InspectedGpu]") -> int:
    total = _total(gpus)
    return _used(gpus) * 100 // total if total else 0
