"""Which of the GPUs that would do are taken. Placement asks; the order of choice is stated there.

GPUs come in, and go out, in the order of their indices. `apart` compares what was chosen on different nodes, in the
same order as on one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from carrel.ledger.gpus import Gpu
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.requests import GpuPolicy, Request, TopologyMode

Apart = tuple[int, int, int]
"""How far GPUs are from what a request prefers, the most important first: GPUs with less bandwidth than it asks for,
further islands, indices between them. Less is better."""
AS_PREFERRED: Apart = (0, 0, 0)


def choose(able: list[GpuEntry], request: Request) -> list[GpuEntry] | None:
    """The best `request.gpus` of the GPUs, in the order of their indices; None if no island has as many."""
    if request.gpus == 1:
        return [min(able, key=_order(request, {}))]
    picks = [(_pick(pool, request), len(pool)) for pool in pools(able, request)]
    return min(picks, key=lambda pick: _rank(pick[0], pick[1], request))[0] if picks else None


def pools(able: list[GpuEntry], request: Request) -> list[list[GpuEntry]]:
    """The sets of GPUs out of which all of the request's GPUs must come; any of them will do."""
    mode, wanted = request.topology.mode, request.gpus
    anywhere = [able] if len(able) >= wanted else []
    if wanted == 1 or mode is TopologyMode.IGNORE:
        return anywhere
    # Who spreads, or names the GPUs, has said something stronger than a preference for one island.
    if request.policy in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS) and mode is not TopologyMode.REQUIRED:
        return anywhere
    islands = [entries for island, entries in by_island(able).items() if island and len(entries) >= wanted]
    if islands or mode is TopologyMode.REQUIRED:
        return islands
    return anywhere


def apart(gpus: Sequence[Gpu], request: Request) -> Apart:
    """Of GPUs that were chosen for the request."""
    slow = sum(gpu.bandwidth_gbps < request.topology.min_bandwidth_gbps for gpu in gpus)
    further_islands = gaps = 0
    if len(gpus) > 1 and request.policy not in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS):
        if request.topology.mode is not TopologyMode.IGNORE:
            further_islands = len({gpu.island or gpu.uuid for gpu in gpus}) - 1
        if request.policy is GpuPolicy.CONTIGUOUS:
            indices = [gpu.index for gpu in gpus]
            gaps = max(indices) - min(indices) + 1 - len(indices)
    return (slow, further_islands, gaps)


def by_island(entries: Iterable[GpuEntry]) -> dict[str, list[GpuEntry]]:
    islands: dict[str, list[GpuEntry]] = {}
    for entry in entries:
        islands.setdefault(entry.gpu.island, []).append(entry)
    return islands


def _order(request: Request, island_sizes: Mapping[str, int]) -> Callable[[GpuEntry], tuple[int, ...]]:
    """The key by which single GPUs are preferred: the smallest first."""
    slow = request.topology.min_bandwidth_gbps
    fullest = -1 if request.policy in (GpuPolicy.SPREAD, GpuPolicy.EMPTIEST) else 1
    wish = (
        {index: rank for rank, index in enumerate(request.prefer_ids)} if request.policy is GpuPolicy.PREFER_IDS else {}
    )

    def key(entry: GpuEntry) -> tuple[int, ...]:
        gpu = entry.gpu
        return (
            entry.kept_for is None,  # what was freed for this pod, it should take
            gpu.bandwidth_gbps < slow,
            wish.get(gpu.index, len(wish)),
            -island_sizes.get(gpu.island, 0),  # over as few islands as possible
            fullest * entry.free,
            gpu.index,
        )

    return key


def _pick(pool: list[GpuEntry], request: Request) -> list[GpuEntry]:
    """The best GPUs of one pool by the policy, in the order of their indices."""
    wanted, policy = request.gpus, request.policy
    if policy is GpuPolicy.CONTIGUOUS:
        best = min(_windows(pool, wanted), key=lambda window: (_gap(window), _run_left(window, pool)))
    elif policy is GpuPolicy.SPREAD:
        best = _alternate(sorted(pool, key=_order(request, {})), wanted)
    else:
        best = sorted(pool, key=_order(request, _island_sizes(pool, request)))[:wanted]
    return sorted(best, key=lambda entry: entry.gpu.index)


def _island_sizes(pool: Iterable[GpuEntry], request: Request) -> dict[str, int]:
    if request.topology.mode is TopologyMode.IGNORE:
        return {}
    return {island: len(entries) if island else 1 for island, entries in by_island(pool).items()}


def _windows(pool: list[GpuEntry], wanted: int) -> list[list[GpuEntry]]:
    """Every run of that many GPUs that follow each other in the pool, which is in the order of indices."""
    return [pool[start : start + wanted] for start in range(len(pool) - wanted + 1)]


def _gap(entries: Sequence[GpuEntry]) -> int:
    """How many indices lie between the GPUs without belonging to them. Zero: they are neighbours."""
    return entries[-1].gpu.index - entries[0].gpu.index + 1 - len(entries)


def _run_left(window: Sequence[GpuEntry], pool: Iterable[GpuEntry]) -> int:
    """How many free neighbours the window would leave behind: small runs are used up before long ones are broken."""
    free = {entry.gpu.index for entry in pool}
    low, high = window[0].gpu.index, window[-1].gpu.index
    left = 0
    while low - 1 in free:
        low, left = low - 1, left + 1
    while high + 1 in free:
        high, left = high + 1, left + 1
    return left


def _alternate(ordered: Iterable[GpuEntry], wanted: int) -> list[GpuEntry]:
    """Takes one GPU of each island in turn, in the given order. A GPU without links is an island of its own."""
    turns: dict[str, int] = {}
    dealt = []
    for place_in_line, entry in enumerate(ordered):
        island = entry.gpu.island or entry.gpu.uuid
        turns[island] = turn = turns.get(island, 0) + 1
        dealt.append((turn, place_in_line, entry))
    dealt.sort(key=lambda place: place[:2])
    return [entry for _, _, entry in dealt[:wanted]]


def _rank(pick: list[GpuEntry], pool_size: int, request: Request) -> tuple[int, ...]:
    """By which the best of several islands is chosen: the smallest first."""
    slow, wishes = request.topology.min_bandwidth_gbps, request.prefer_ids
    return (
        sum(entry.kept_for is None for entry in pick),
        sum(entry.gpu.bandwidth_gbps < slow for entry in pick),
        -sum(entry.gpu.index in wishes for entry in pick) if request.policy is GpuPolicy.PREFER_IDS else 0,
        _gap(pick) if request.policy is GpuPolicy.CONTIGUOUS else 0,
        -sum(entry.free for entry in pick) if request.policy is GpuPolicy.EMPTIEST else 0,
        pool_size,
        pick[0].gpu.index,
    )
