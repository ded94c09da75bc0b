"""`carrel demo`: try Carrel without a cluster. Nothing leaves the machine."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    cluster: Annotated[Path | None, typer.Option(help="Nodes and cards, as YAML; without it, a small lab.")] = None,
    pods: Annotated[Path | None, typer.Option(help="Pods and GpuClaims to run; without it, every dialect.")] = None,
    port: Annotated[int, typer.Option(help="Port of the embedded Kubernetes API; 0: any free one.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="Stop after so long; 0: when you press Ctrl-C.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Which pods come when is drawn from it.")] = 1,
) -> None:
    """Run Carrel on an embedded Kubernetes API with simulated GPUs, and watch who holds what.

    Pods of every dialect come and go; each line shows a card, who holds how much of it, and why others wait.
    While it runs, kubectl works against it: the address is in the first line.

    Examples:

      carrel demo

      carrel demo --cluster my-cluster.yaml --pods my-pods.yaml

      carrel demo --seconds 10 | tail -20
    """
    from carrel.demo.run import run_demo

    run_demo(cluster, pods, port=port, seconds=seconds, seed=seed)
