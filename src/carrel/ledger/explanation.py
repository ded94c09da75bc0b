"""Why a pod waits: one sentence about the whole cluster, which names the node that is the closest to fitting."""

from collections.abc import Iterable, Sequence

from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import NO_ROOM, able
from carrel.ledger.placement import Placement, able_entries, candidates, place, selected, suits_by_nature
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request


def why_waiting(ledger: Ledger, request: Request, nodes: Sequence[str], pod: str = "") -> Refusal | None:
    """None if the pod need not wait. `nodes` are those where it may go by everything that is not about GPUs."""
    if not nodes:
        return Refusal(f"there is no node for {request}")
    if candidates(ledger, request, nodes, pod).fitting:
        return None
    closest = _closest(ledger, request, nodes, pod)
    if not ledger.entries(closest):
        # Then it does not help to name it: the GPUs are where the pod may not run.
        have = f"none of the {len(nodes)} nodes where the pod may run has a"
        return Refusal(
            f"{request} asked, but {have if len(nodes) > 1 else 'the only node for the pod has no'} GPU that Carrel"
            " knows of"
        )
    answer = place(ledger, request, closest, pod)
    assert not isinstance(answer, Placement), "none of the nodes has room"
    if len(nodes) == 1:
        return Refusal(answer.reason)
    return Refusal(f"none of {len(nodes)} nodes has {request}; closest: {answer.reason}")


def _closest(ledger: Ledger, request: Request, nodes: Iterable[str], pod: str) -> str:
    """The node where the request could fit if nobody held anything, then where the most GPUs would do. A node with GPUs
    of another model only is further away, however many are free, and one without GPUs is the last."""
    rooms, is_kept_for = ledger.rooms, bool(ledger.kept_for(pod))

    def order(name: str) -> tuple[int, int, str]:
        room = rooms.get(name, NO_ROOM)
        # A summary leaves out what is kept, for whomever.
        count = len(able_entries(ledger, request, name, pod)) if is_kept_for else able(room, request)
        return (-count, -room.largest, name)

    found, least = "", 4
    for name in sorted(nodes, key=order):
        unfitness = _unfitness(ledger, request, name)
        if unfitness < least:
            found, least = name, unfitness
        if not least:
            break
    return found


def _unfitness(ledger: Ledger, request: Request, name: str) -> int:
    """What is wrong with the node even if nobody held a part of its GPUs. The worse, the higher; 0: nothing."""
    node, gpus = ledger.node(name), [entry.gpu for entry in ledger.entries(name)]
    if not gpus:
        return 3
    need = request.amount.on
    suitable = sum(suits_by_nature(gpu, request) and need(gpu.memory) <= gpu.memory for gpu in gpus)
    if node is None or node.unusable or not selected(node, request) or not suitable:
        return 2
    return int(suitable < request.gpus)
