"""A cluster's state in a file, for simulations elsewhere: machines, GPUs, pods and bookings, and no names of people.

Pods and people are numbered. Nothing of a pod is kept but what it asks for, when it was created and whose it is; no
labels, no annotations, no environment. Hours count from the oldest pod or booking.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Amount, Memory, Portion, Request, Topology, TopologyMode
from carrel.parsing import Malformed
from carrel.simulation.workload import HOUR_S, BookingWish, SimulatedCluster, SimulatedPod, Trace

FORM = "carrel-snapshot/1"


def written(cluster: SimulatedCluster, workload: Trace, taken: str) -> dict[str, Any]:
    """As JSON objects."""
    return {
        "form": FORM,
        "taken": taken,
        "nodes": [_write_node(node, cluster.machines.get(node.name)) for node in cluster.nodes],
        "pods": [_write_pod(pod) for pod in workload.pods],
        "bookings": [
            {
                "user": each.user,
                "model": each.model,
                "gpus": each.gpus,
                "askedHours": each.asked_s / HOUR_S,
                "startHours": each.start_s / HOUR_S,
                "lastsHours": each.lasts_s / HOUR_S,
            }
            for each in workload.wishes
        ],
    }


def _write_node(node: Node, machine: MachineRoom | None) -> dict[str, Any]:
    size = {"cpuMilli": machine.cpu_milli, "memoryMiB": machine.memory_mib} if machine is not None else {}
    gpus = [
        {
            "index": gpu.index,
            "model": gpu.model,
            "memoryMiB": gpu.memory,
            "island": gpu.island,
            "bandwidthGBps": gpu.bandwidth_gbps,
            "usable": not (gpu.unusable or node.unusable),
        }
        for gpu in node.gpus
    ]
    return {"name": node.name, **size, "gpus": gpus}


def _write_pod(pod: SimulatedPod) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if pod.request is not None:
        amount = pod.request.amount
        part = {"gpuMemoryMiB": amount.mib} if isinstance(amount, Memory) else {"part": str(amount.part)}
        asked = {"gpus": pod.request.cards, **part, "model": pod.request.model}
        asked["oneIsland"] = pod.request.topology.mode is TopologyMode.REQUIRED
    return {
        "name": pod.name,
        "owner": pod.owner,
        "arrivesHours": pod.arrives_s / HOUR_S,
        "lastsHours": None if pod.lasts_s is None else pod.lasts_s / HOUR_S,
        "cpuMilli": pod.machine.cpu_milli,
        "memoryMiB": pod.machine.memory_mib,
        **asked,
    }


def read(document: Any, source: str) -> tuple[SimulatedCluster, Trace]:
    """Raises `Malformed`."""
    if not isinstance(document, Mapping) or document.get("form") != FORM:
        form = document.get("form") if isinstance(document, Mapping) else document
        raise Malformed(source, "form", form, f"{FORM}, as `carrel snapshot` writes it")
    try:
        machines = {
            node["name"]: MachineRoom(node["cpuMilli"], node["memoryMiB"])
            for node in document["nodes"]
            if "cpuMilli" in node
        }
        cluster = SimulatedCluster(tuple(_read_node(node) for node in document["nodes"]), machines)
        pods = tuple(_read_pod(pod) for pod in document["pods"])
        wishes = tuple(
            BookingWish(
                each["user"],
                each["model"],
                each["gpus"],
                each["askedHours"] * HOUR_S,
                each["startHours"] * HOUR_S,
                each["lastsHours"] * HOUR_S,
            )
            for each in document["bookings"]
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Malformed(source, "a field", str(error), "what `carrel snapshot` writes") from None
    return cluster, Trace(pods, wishes)


def _read_node(node: Mapping[str, Any]) -> Node:
    name = node["name"]
    gpus = tuple(
        Gpu(
            f"{name}/{gpu['index']}",
            name,
            gpu["index"],
            gpu["model"],
            MiB(gpu["memoryMiB"]),
            gpu["island"],
            gpu["bandwidthGBps"],
            "" if gpu["usable"] else "it was not in use when the snapshot was taken",
        )
        for gpu in node["gpus"]
    )
    return Node(name, gpus)


def _read_pod(pod: Mapping[str, Any]) -> SimulatedPod:
    request = None
    if pod.get("gpus"):
        part = Portion(Fraction(pod["part"])) if "part" in pod else None
        amount: Amount = Memory(MiB(pod["gpuMemoryMiB"])) if part is None else WHOLE if part == WHOLE else part
        topology = Topology(TopologyMode.REQUIRED) if pod.get("oneIsland") else Topology()
        request = Request(pod["gpus"], amount, pod["model"], topology=topology)
    lasts = pod["lastsHours"]
    machine = MachineRoom(pod["cpuMilli"], pod["memoryMiB"])
    arrives = pod["arrivesHours"] * HOUR_S
    return SimulatedPod(pod["name"], request, machine, pod["owner"], arrives, None if lasts is None else lasts * HOUR_S)
