"""`make bench-e2e`: pods per second through the real kube-scheduler, with Carrel and without, in turns."""

import argparse
import asyncio
import sys
import time

from benchmarks.end_to_end.real_cluster import real_cluster
from benchmarks.end_to_end.results import figures, growth, keep
from benchmarks.end_to_end.rounds import VARIANTS, Outcome, a_round
from benchmarks.end_to_end.start import measure_start
from benchmarks.measuring import Figure


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end", description=__doc__)
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[500, 5_000], help="sizes of the cluster, the smallest first"
    )
    parser.add_argument("--pods", type=int, default=1_500, help="pods that wait, in each round")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each variant; the medians are shown; 1 takes six minutes"
    )
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="all must have `without`"
    )
    parser.add_argument(
        "--start-pods",
        type=int,
        default=50_000,
        help="so many are bound when an extender starts in the largest cluster; 0: that is not measured",
    )
    parser.add_argument("--extender-options", default="", help="further options of `carrel extender`, for trials")
    parser.add_argument("--keep", action="store_true", help="add the result to benchmarks/results")
    return parser.parse_args(arguments)


async def measure(chosen: argparse.Namespace) -> tuple[dict[int, dict[str, list[Outcome]]], list[Figure]]:
    by_nodes: dict[int, dict[str, list[Outcome]]] = {}
    start: list[Figure] = []
    begun, done, all_rounds = time.monotonic(), 0, len(chosen.nodes) * chosen.rounds * len(chosen.variants)
    async with real_cluster() as cluster:
        for nodes in sorted(chosen.nodes):
            cluster.grow_to(nodes)
            print(f"{_since(begun)} {nodes:,} nodes are there", flush=True)
            rounds = by_nodes[nodes] = {key: [] for key in chosen.variants}
            for number in range(chosen.rounds):
                for key in chosen.variants:
                    outcome = await a_round(cluster, VARIANTS[key], chosen.pods, chosen.extender_options.split())
                    rounds[key].append(outcome)
                    done += 1
                    shown = ", ".join(f"{name} {cpu:.2f} ms" for name, cpu in sorted(outcome.cpu_ms.items()))
                    where = f"{nodes:,} nodes, round {number + 1}, {VARIANTS[key].name}"
                    progress = f"{_since(begun)} {done} of {all_rounds}"
                    print(f"{progress}: {where}: {outcome.pods_per_s:.0f} pods/s; {shown}", flush=True)
        if chosen.start_pods:
            print(f"{_since(begun)} the start of an extender with {chosen.start_pods:,} pods", flush=True)
            start = await measure_start(cluster, chosen.start_pods)
    print(f"{_since(begun)} all done", flush=True)
    return by_nodes, start


def _since(begun: float) -> str:
    return f"{(time.monotonic() - begun) / 60:4.1f} min:"


def main(arguments: list[str]) -> int:
    chosen = options(arguments)
    by_nodes, start = asyncio.run(measure(chosen))
    if chosen.keep:
        keep(by_nodes, chosen.pods, start)
    missed = 0
    for nodes, rounds in by_nodes.items():
        print()
        for figure in figures(nodes, rounds):
            print(figure)
            missed += nodes == max(by_nodes) and not figure.reached
    print()
    for figure in (*growth(by_nodes), *start):
        print(figure)
        missed += not figure.reached
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
