"""Which GPUs are wanted most, because many requests can use no others.

Each request of the mix is shared out evenly among the GPUs that it allows. What one GPU gets of all of them, compared
with the average GPU, is how much it is wanted. If every request allows every GPU, all are wanted alike.

So pods that would run anywhere stay away from a model that others name, and from the GPUs with the memory that only
large pods need, as long as there are others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from carrel.ledger.demand import Mix
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.requests import Amount, GpuSelector, Request

GpuKind = tuple[str, MiB]
"""Model and memory."""
DIGITS = 3
"""More would let rounding errors decide between nodes."""


def kinds_of(gpus: Iterable[Gpu]) -> Counter[GpuKind]:
    """How many usable GPUs of each kind there are."""
    return Counter((gpu.model, gpu.memory) for gpu in gpus if not gpu.unusable)


def contention(mix: Mix, there: Mapping[GpuKind, int]) -> dict[GpuKind, float]:
    """By how much more than the average GPU one of a kind is wanted: 1.0 for twice as much. Below zero: less. Kinds
    that are not in it are wanted as the average."""
    total = sum(there.values())
    wanted: dict[GpuKind, float] = dict.fromkeys(there, 0.0)
    for request, weight in _without_cpu(mix):
        allowed = {kind: count for kind, count in there.items() if _allows(request, kind)}
        if allowed:
            share = weight * _gpus(request, allowed) / sum(allowed.values())
            for kind in allowed:
                wanted[kind] += share
    mean = sum(wanted[kind] * count for kind, count in there.items()) / max(total, 1)
    if not mean:
        return {}
    found = {kind: round(wanted[kind] / mean - 1, DIGITS) for kind in there}
    return {kind: more for kind, more in found.items() if more}


def _without_cpu(mix: Mix) -> Iterable[tuple[Request, float]]:
    """The requests of the mix with their weights; those that differ in CPU only are one."""
    weights: dict[tuple[int, Amount, str, GpuSelector], float] = {}
    requests = {}
    for typical in mix.typical:
        request = typical.request
        key = (request.gpus, request.amount, request.model, request.selector)
        weights[key] = weights.get(key, 0.0) + typical.weight
        requests[key] = request
    return [(request, weights[key]) for key, request in requests.items()]


def _allows(request: Request, kind: GpuKind) -> bool:
    model, memory = kind
    return memory > 0 and request.allows_model(model) and request.amount.on(memory) <= memory


def _gpus(request: Request, there: Mapping[GpuKind, int]) -> float:
    """How many GPUs of these it would take, on average."""
    parts = sum(count * request.amount.on(memory) / memory for (_, memory), count in there.items())
    return request.gpus * parts / sum(there.values())
