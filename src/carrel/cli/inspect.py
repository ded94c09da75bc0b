"""`carrel inspect`: the tables of `kubectl inspect gpushare`, which scripts and eyes know, from Carrel's own ledger."""

from collections.abc import Iterable, Sequence

import typer

from carrel.cli.cluster_reading import read_cluster
from carrel.cli.cluster_reading import show as show_data
from carrel.cli.settings import Format, InspectSettings
from carrel.command_errors import NOT_FOUND, command_failed
from carrel.dialects.gpushare import InspectedCard, InspectedNode, inspection
from carrel.dialects.gpushare_inspect import inspected
from carrel.dialects.options import Unit
from carrel.leases.cluster_state import ClusterState
from carrel.process import cluster_access


def show(settings: InspectSettings) -> None:
    carrel = read_cluster(settings, cluster_access(settings))
    ledger = carrel.ledger
    if settings.node and ledger.node(settings.node) is None:
        why = "No node of that name has reported cards."
        raise command_failed(f"No GPUs on {settings.node}", why, "carrel inspect", NOT_FOUND)
    nodes = inspected(ledger, settings.memory_unit, [settings.node] if settings.node else None)
    if settings.output is not Format.TABLE:
        show_data(inspection(nodes), settings.output)
        return
    addresses = _addresses(carrel)
    lines = details(nodes, addresses) if settings.details else summary(nodes, addresses, settings.memory_unit)
    typer.echo("\n".join(lines))


def summary(nodes: Sequence[InspectedNode], addresses: dict[str, str], unit: Unit) -> Iterable[str]:
    most = max((len(node.cards) for node in nodes), default=0)
    head = ["NAME", "IPADDRESS", *(f"GPU{i}(Allocated/Total)" for i in range(most)), f"GPU Memory({unit.value})"]
    rows = [
        [
            node.name,
            addresses.get(node.name, ""),
            *(f"{_used([card])}/{card.total}" for card in node.cards),
            *["0/0"] * (most - len(node.cards)),
            f"{_used(node.cards)}/{_total(node.cards)}",
        ]
        for node in nodes
    ]
    table = _aligned([head, *rows])
    cards = [card for node in nodes for card in node.cards]
    yield from table
    yield "-" * max(map(len, table))
    yield "Allocated/Total GPU Memory In Cluster:"
    yield f"{_used(cards)}/{_total(cards)} ({_percent(cards)}%)"


def details(nodes: Sequence[InspectedNode], addresses: dict[str, str]) -> Iterable[str]:
    for number, node in enumerate(nodes):
        if number:
            yield ""
        yield f"NAME:       {node.name}"
        yield f"IPADDRESS:  {addresses.get(node.name, '')}"
        yield ""
        pods = sorted({(pod.namespace, pod.name) for card in node.cards for pod in card.pods})
        head = ["NAME", "NAMESPACE", *(f"GPU{card.index}(Allocated)" for card in node.cards)]
        rows = [
            [name, namespace, *(str(_used_by(card, namespace, name)) for card in node.cards)]
            for namespace, name in pods
        ]
        yield from _aligned([head, *rows])
        yield f"Allocated :  {_used(node.cards)} ({_percent(node.cards)}%)"
        yield f"Total :      {_total(node.cards)}"


def _addresses(carrel: ClusterState) -> dict[str, str]:
    return {
        node.metadata.name: next((each.address for each in node.status.addresses if each.type == "InternalIP"), "")
        for node in carrel.nodes.store
    }


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _used(cards: Sequence[InspectedCard]) -> int:
    return sum(pod.used for card in cards for pod in card.pods)


def _used_by(card: InspectedCard, namespace: str, name: str) -> int:
    return sum(pod.used for pod in card.pods if (pod.namespace, pod.name) == (namespace, name))


def _total(cards: Sequence[InspectedCard]) -> int:
    return sum(card.total for card in cards)


def _percent(cards: Sequence[InspectedCard]) -> int:
    total = _total(cards)
    return _used(cards) * 100 // total if total else 0
