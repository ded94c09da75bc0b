"""In which order pods arrive, for each seed: the protocol of the FGD paper.

Pods are sorted by name and shuffled. If they ask for less than the target, pods drawn at random are added until it is
reached; if they ask for more, the rest is left out. Pods never leave.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from carrel.simulation.workload import SimulatedPod

MOST_ARRIVALS = 1_000_000
"""Of one run. A million take hours, and are some hundred times the pods of the traces that are known."""


def expected_arrivals(pods: Sequence[SimulatedPod], gpus: float, gpu_memory: int = 0) -> float:
    """About how many pods arrive until they ask for so many GPUs."""
    asked = sum(pod.gpus(gpu_memory) for pod in pods)
    return len(pods) * gpus / asked if asked else float(len(pods))


def arrivals(pods: Sequence[SimulatedPod], gpus: float, seed: int, gpu_memory: int = 0) -> list[SimulatedPod]:
    """`gpus` is the target: how many GPUs all of them ask for together, at least."""
    chance = Random(seed)  # noqa: S311 # a run must be repeatable
    known = sorted(pods, key=lambda pod: pod.name)
    order = known.copy()
    chance.shuffle(order)
    arrived: list[SimulatedPod] = []
    asked = 0.0
    if not any(pod.request for pod in known):
        return order
    while asked < gpus - 1e-9:
        position = len(arrived)
        pod = order[position] if position < len(order) else replace(chance.choice(known), name=f"again-{position}")
        arrived.append(pod)
        asked += pod.gpus(gpu_memory)
    return arrived
