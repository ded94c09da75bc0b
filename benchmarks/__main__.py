"""`make bench`: runs every benchmark, prints figures beside their goals, fails if one is missed.

python -m benchmarks            all
python -m benchmarks core       one of them
"""

import importlib
import sys

BENCHMARKS = (
    "core",
    "coverage",
    "victims",
    "gangs",
    "monitoring",
    "reports",
    "client",
    "embedded_api",
    "extender",
    "admission",
    "booking",
    "pages",
    "usage",
    "node",
    "starting",
    "loading",
)


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        print(f"No benchmark is called {', '.join(unknown)}. There are: {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    missed = 0
    for name in chosen or BENCHMARKS:
        print(f"\n{name}")
        for figure in importlib.import_module(f"benchmarks.{name}").measure():
            print(figure, flush=True)
            missed += not figure.reached
    if missed:
        print(f"\n{missed} missed. The machine may be busy: run them again.", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
