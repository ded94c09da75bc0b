"""Which GPUs each pod holds, as a snapshot can say it: indexes that its node reports, and the same amount of each.

    what the ledger says                             what the snapshot says
    slots, where the kubelet chooses                 the GPUs behind them, as `shown_gpus` finds them
    a ResourceClaim                                  its first pod holds the GPUs; the others run beside it without
    a part of every GPU, because nobody knows which  as many GPUs as it has, the first with room
    different parts of several GPUs                  the smallest of them, of each
    more than a GPU has; a GPU that is not reported  nothing: the pod runs on its node without GPUs

In the last line, to place the pod anew would give it GPUs that it does not have. No GPU is held more than it has.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carrel.cluster.pod_requests import request_in
from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.cluster.record.unrecorded_pods import UnrecordedPod
from carrel.cluster.state import ClusterState
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.requests import WHOLE, Amount, Memory, Request

Parts = dict[Gpu, MiB | None]
"""How much of each GPU; None: the whole of it."""


@dataclass(frozen=True, slots=True)
class Holding:
    node: str
    gpus: tuple[Gpu, ...]
    """As the node reports them."""
    amount: Amount
    """Of each."""


def holdings(carrel: ClusterState, pods: Sequence[Pod]) -> dict[str, Holding]:
    """By the uid of the pod. Of several pods that hold too much together, the first ones count."""
    found: dict[str, Holding] = {}
    order = {pod.metadata.uid: number for number, pod in enumerate(pods)}
    for name in carrel.ledger.nodes:
        entries = shown_gpus(carrel.cluster_ledger, name)
        free = {entry.gpu: int(entry.gpu.memory) for entry in entries}
        parts, unknown = _parts(carrel, entries), _unknown(carrel, name)
        for uid in sorted(order.keys() & parts.keys() - unknown.keys(), key=order.__getitem__):
            amount = _amount(request_in(carrel.requests.as_admitted(pods[order[uid]])), parts[uid])
            if _take(free, parts[uid], amount):
                found[uid] = Holding(name, tuple(parts[uid]), amount)
        for uid in sorted(order.keys() & unknown.keys(), key=order.__getitem__):
            pod = unknown[uid]
            gpus = _with_room(free, pod)
            if len(gpus) == pod.count and _take(free, gpus, pod.amount):
                found[uid] = Holding(name, tuple(gpus), pod.amount)
    return found


def _parts(carrel: ClusterState, entries: Iterable[GpuEntry]) -> dict[str, Parts]:
    """What the pods hold, by themselves and by their claims."""
    parts: dict[str, Parts] = {}
    for entry in entries:
        for uid, share in entry.shares.items():
            pod = carrel.holders.pod_of(uid)
            if pod is not None:
                held = parts.setdefault(pod.metadata.uid, {})
                before = held.get(entry.gpu, MiB(0))
                is_whole = share.memory is None or before is None
                held[entry.gpu] = None if is_whole else MiB((share.memory or 0) + (before or 0))
    return parts


def _unknown(carrel: ClusterState, node: str) -> Mapping[str, UnrecordedPod]:
    """Of pods of which nobody has said yet which GPUs they have. Where there are slots, `shown_gpus` knows."""
    if carrel.cluster_ledger.kubelet_chooses(node):
        return {}
    return {pod.holder.uid: pod for pod in carrel.cluster_ledger.unrecorded(node) if not pod.is_known}


def _amount(asked: Request | None, held: Parts) -> Amount:
    parts = [part for part in held.values() if part is not None]
    if len(parts) < len(held):
        return WHOLE
    if asked is not None and all(asked.amount.on(gpu.memory) == part for gpu, part in held.items()):
        return asked.amount
    return Memory(min(parts))


def _with_room(free: Mapping[Gpu, int], pod: UnrecordedPod) -> list[Gpu]:
    return [gpu for gpu, mib in free.items() if mib >= pod.amount.on(gpu.memory)][: pod.count]


def _take(free: dict[Gpu, int], gpus: Iterable[Gpu], amount: Amount) -> bool:
    """False, and nothing is taken, if one of them has less."""
    needs = {gpu: amount.on(gpu.memory) for gpu in gpus}
    if any(free[gpu] < need for gpu, need in needs.items()):
        return False
    for gpu, need in needs.items():
        free[gpu] -= need
    return True
